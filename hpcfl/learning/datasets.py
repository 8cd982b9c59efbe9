"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpcfl.errors import no_such
from hpcfl.learning import adult, cifar10, digits, idx, leaf, synthetic
from hpcfl.learning.base import Dataset, find_data_dir

_READERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": idx.read_mnist,
    "cifar10": cifar10.read,
    "adult": adult.read,
    "femnist": leaf.read_femnist,
}
FILES = tuple(_READERS)
"""Data sets that are read from files."""
NAMES = (*FILES, "digits", "synthetic")


def load(name: str, data_dir: Path | None = None, seed: int = 0) -> Dataset:
    """Read or make a data set, one of `NAMES`; a UsageError says why it cannot be had.

    It is read from `data_dir`, with one folder a data set, by default from the environment variable
    HPCFL_DATA. Only the synthetic one is drawn from the seed: the others are the same for every
    seed, so that accuracies of different runs can be compared.
    """
    if name == "synthetic":
        return synthetic.make(seed)
    if name == "digits":
        return digits.read()
    if name not in _READERS:
        raise no_such("data set", name, NAMES)
    return _READERS[name](find_data_dir(name, data_dir))
