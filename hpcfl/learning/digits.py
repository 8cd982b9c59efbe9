"""The embedded default: the 1,797 handwritten digits that scikit-learn carries.

They are the test part of "Optical Recognition of Handwritten Digits" of the UCI repository
(E. Alpaydin, C. Kaynak, 1998).
"""

from __future__ import annotations

import numpy as np

from hpcfl.errors import MissingPackageError
from hpcfl.learning.base import Dataset
from hpcfl.options.names import DATASETS

CLASSES = DATASETS["digits"].classes
LARGEST_VALUE = 16
TEST_SHARE = 5  # one of so many samples of a class is for testing


def read() -> Dataset:
    """Return the digits, 80 % of each class for training and 20 % for testing, scaled to [0, 1].

    The split is always the same, whatever a run's seed is. Images have shape (1, 8, 8).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackageError("the data set digits", "scikit-learn", "train") from error
    bundled = load_digits()
    inputs = (bundled.images / LARGEST_VALUE).astype(np.float32)[:, None]
    labels = bundled.target.astype(np.int64)

    generator = np.random.default_rng(0)
    testing = np.zeros(len(labels), bool)
    for label in range(CLASSES):
        members = generator.permutation(np.flatnonzero(labels == label))
        testing[members[::TEST_SHARE]] = True
    return Dataset(
        name="digits",
        train_inputs=inputs[~testing],
        train_labels=labels[~testing],
        test_inputs=inputs[testing],
        test_labels=labels[testing],
        classes=CLASSES,
    )
