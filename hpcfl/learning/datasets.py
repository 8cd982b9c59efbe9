"""Data sets by name."""

from __future__ import annotations

from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.learning.base import Dataset, find_data_dir

__all__ = ["NAMES", "Dataset", "load"]

NAMES = ("mnist", "cifar10", "adult", "femnist", "digits", "synthetic")


def load(name: str, data_dir: Path | None = None, seed: int = 0) -> Dataset:
    """Read or make a data set, one of `NAMES`; a UsageError says why it cannot be had.

    It is read from `data_dir`, with one folder a data set, by default from the environment variable
    HPCFL_DATA. Only the synthetic one is drawn from the seed: the others are the same for every
    seed, so that accuracies of different runs can be compared.
    """
    if name == "digits":
        from hpcfl.learning import digits

        return digits.read()
    if name == "synthetic":
        from hpcfl.learning import synthetic

        return synthetic.make(seed)
    if name not in NAMES:
        raise UsageError(f"there is no data set {name!r}; there are {', '.join(NAMES)}")
    folder = find_data_dir(name, data_dir)
    if name == "mnist":
        from hpcfl.learning import idx

        return idx.read_mnist(folder)
    if name == "cifar10":
        from hpcfl.learning import cifar10

        return cifar10.read(folder)
    if name == "adult":
        from hpcfl.learning import adult

        return adult.read(folder)
    from hpcfl.learning import leaf

    return leaf.read_femnist(folder)
