"""Loads data sets by name, and makes the two that need no files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hpcfl.errors import MissingPackageError, no_such
from hpcfl.learning import adult, images
from hpcfl.learning.base import SYNTHETIC, Dataset, find_data_dir, folder_of, generator_of, missing
from hpcfl.options.names import DATASETS

_READERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": images.read_mnist,
    "cifar10": images.read_cifar10,
    "adult": adult.read,
    "adult-raw": partial(adult.read, standardise=False),
    "femnist": images.read_femnist,
}

_SYNTHETIC_TRAIN, _SYNTHETIC_TEST = 4000, 1000
# Standard deviation of the centres' coordinates; the noise's is 1. Two centres are then about
# 0.5 sqrt(2 * 64) = 5.7 apart, and the best classifier has an accuracy of about 98 %.
_SPREAD = 0.5

_DIGITS_LARGEST = 16
_DIGITS_TEST_SHARE = 5  # one in this many samples of a class is for testing


def load(name: str, data_dir: Path | None = None, seed: int = 0) -> Dataset:
    """Read or make a data set, one of `DATASETS`; raise UsageError if it is not available.

    `data_dir` has one folder per data set; it defaults to the environment variable HPCFL_DATA. The
    seed only changes the synthetic data set. The others are the same for every seed, so that
    accuracies of different runs can be compared.
    """
    kind = DATASETS.get(name)
    if kind is None:
        raise no_such("data set", name, DATASETS)
    if kind.folder is None:
        return _make_synthetic(seed) if name == "synthetic" else _read_digits()
    return _READERS[name](find_data_dir(kind.folder, data_dir))


def check(name: str, data_dir: Path | None = None) -> None:
    """Raise UsageError if a data set's folder is missing; no file is read."""
    fetched = DATASETS[name].folder if name in DATASETS else None
    if fetched is not None:
        folder = find_data_dir(fetched, data_dir)
        place = folder_of(fetched, folder)
        if not place.is_dir():
            raise missing(place, fetched, folder)


def _read_digits() -> Dataset:
    """Return the 1,797 digits of scikit-learn, scaled to [0, 1]; 80 % of a class is for training.

    They are the test part of "Optical Recognition of Handwritten Digits" of the UCI repository
    (E. Alpaydin, C. Kaynak, 1998). Images have shape (1, 8, 8).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackageError("the data set digits", "scikit-learn", "train") from error
    bundled = load_digits()
    inputs = (bundled.images / _DIGITS_LARGEST).astype(np.float32)[:, None]
    labels = bundled.target.astype(np.int64)
    generator = np.random.default_rng(0)  # the same split for every run
    testing = np.zeros(len(labels), bool)
    for label in range(DATASETS["digits"].classes):
        members = generator.permutation(np.flatnonzero(labels == label))
        testing[members[::_DIGITS_TEST_SHARE]] = True
    return Dataset(
        name="digits",
        train_inputs=inputs[~testing],
        train_labels=labels[~testing],
        test_inputs=inputs[testing],
        test_labels=labels[testing],
        classes=DATASETS["digits"].classes,
    )


def _make_synthetic(seed: int) -> Dataset:
    """Draw one cloud of points for each class: the class's centre plus standard normal noise."""
    generator = generator_of(seed, SYNTHETIC)
    (features,), classes = DATASETS["synthetic"].shape, DATASETS["synthetic"].classes
    centres = _SPREAD * generator.standard_normal((classes, features), np.float32)
    train_labels = generator.permutation(np.arange(_SYNTHETIC_TRAIN, dtype=np.int64) % classes)
    test_labels = generator.permutation(np.arange(_SYNTHETIC_TEST, dtype=np.int64) % classes)
    train, test = (
        centres[labels] + generator.standard_normal((len(labels), features), np.float32)
        for labels in (train_labels, test_labels)
    )
    return Dataset("synthetic", train, train_labels, test, test_labels, classes)
