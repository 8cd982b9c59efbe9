"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from hpcfl.errors import no_such
from hpcfl.learning import adult, cifar10, digits, idx, leaf, synthetic
from hpcfl.learning.base import Dataset, find_data_dir, folder_of, missing
from hpcfl.options.names import DATASETS

_READERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": idx.read_mnist,
    "cifar10": cifar10.read,
    "adult": adult.read,
    "adult-raw": partial(adult.read, standardise=False),
    "femnist": leaf.read_femnist,
}


def load(name: str, data_dir: Path | None = None, seed: int = 0) -> Dataset:
    """Read or make a data set, one of `DATASETS`; a UsageError says why it cannot be had.

    It is read from `data_dir`, with one folder a data set, by default from the environment variable
    HPCFL_DATA. Only the synthetic one is drawn from the seed: the others are the same for every
    seed, so that accuracies of different runs can be compared.
    """
    kind = DATASETS.get(name)
    if kind is None:
        raise no_such("data set", name, DATASETS)
    if kind.folder is None:
        return synthetic.make(seed) if name == "synthetic" else digits.read()
    folder = find_data_dir(kind.folder, data_dir)
    return _READERS[name](folder)


def check(name: str, data_dir: Path | None = None) -> None:
    """Refuse, with a UsageError, a data set whose folder is not there; no file is read."""
    fetched = DATASETS[name].folder if name in DATASETS else None
    if fetched is not None:
        folder = find_data_dir(fetched, data_dir)
        place = folder_of(fetched, folder)
        if not place.is_dir():
            raise missing(place, fetched, folder)
