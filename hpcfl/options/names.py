"""Names and properties of data sets and models, which options offer as choices.

They are apart from the modules that read data and build models, which import NumPy and torch.
"""

from __future__ import annotations

from hpcfl.values import dataclass


@dataclass(frozen=True)
class DatasetKind:
    """The properties of a data set as it was published."""

    shape: tuple[int, ...]  # of a sample
    classes: int
    model: str  # default model for it
    folder: str | None = None  # folder of its files, also the name to fetch them by; None if none


DATASETS = {
    "digits": DatasetKind((1, 8, 8), 10, "softmax"),
    "synthetic": DatasetKind((64,), 10, "softmax"),
    "mnist": DatasetKind((1, 28, 28), 10, "2nn", "mnist"),
    "cifar10": DatasetKind((3, 32, 32), 10, "cifar-cnn", "cifar10"),
    "adult": DatasetKind((108,), 2, "adult-lr", "adult"),
    "adult-raw": DatasetKind((108,), 2, "adult-lr", "adult"),
    "femnist": DatasetKind((1, 28, 28), 62, "femnist-cnn", "femnist"),
}
FILES = tuple(name for name, kind in DATASETS.items() if kind.folder is not None)
"""Data sets that are read from files."""

# The data set that each model is made for, which determines the size of its inputs.
MODELS = {
    "softmax": "mnist",
    "2nn": "mnist",
    "adult-lr": "adult",
    "adult-nn": "adult",
    "mnist-cnn": "mnist",
    "cifar-cnn": "cifar10",
    "femnist-cnn": "femnist",
}
