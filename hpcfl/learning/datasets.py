"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from hpcfl.errors import no_such
from hpcfl.learning import adult, cifar10, digits, idx, leaf, styled, synthetic
from hpcfl.learning.base import Dataset, find_data_dir, missing

_READERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": idx.read_mnist,
    "cifar10": cifar10.read,
    "adult": adult.read,
    "adult-raw": partial(adult.read, standardise=False),
    "femnist": leaf.read_femnist,
    "styled-mnist": styled.read,
}
# Data sets that are made of another one's files.
MADE_OF = {"styled-mnist": "mnist", "adult-raw": "adult"}
FILES = tuple(_READERS)
"""Data sets that are read from files."""
FOLDERS = {name: MADE_OF.get(name, name) for name in FILES}
"""The folder of each of these, and the name by which it is fetched."""
NAMES = (*FILES, "digits", "synthetic")
SAMPLES: dict[str, tuple[tuple[int, ...], int]] = {
    "mnist": ((1, 28, 28), idx.CLASSES),
    "cifar10": (cifar10.IMAGE, cifar10.CLASSES),
    "adult": ((108,), len(adult.LABELS)),
    "adult-raw": ((108,), len(adult.LABELS)),
    "femnist": (leaf.IMAGE, leaf.CLASSES),
    "styled-mnist": ((1, 28, 28), idx.CLASSES),
    "digits": ((1, 8, 8), digits.CLASSES),
    "synthetic": ((synthetic.FEATURES,), synthetic.CLASSES),
}
"""Shape of a sample, and number of classes, of each data set as its publisher has it."""


_keeping = ContextVar("keeping", default=False)
_kept: dict[tuple[str, Path], Dataset] = {}


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
    folder = find_data_dir(FOLDERS[name], data_dir)
    if (name, folder) in _kept:
        return _kept[name, folder]
    data = _READERS[name](folder)
    if _keeping.get():
        _kept.clear()
        _kept[name, folder] = data
    return data


@contextmanager
def read_once() -> Iterator[None]:
    """Within, the data set that was read last is not read again: for many runs on one set.

    Nobody may change its arrays.
    """
    token = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(token)
        if not _keeping.get():  # else this is within another one
            _kept.clear()


def check(name: str, data_dir: Path | None = None) -> None:
    """Refuse, with a UsageError, a data set whose folder is not there; no file is read."""
    if name in FOLDERS:
        fetched = FOLDERS[name]
        folder = find_data_dir(fetched, data_dir)
        if not (folder / fetched).is_dir():
            raise missing(folder / fetched, fetched, folder)
