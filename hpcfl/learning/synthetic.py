"""A data set that needs no file: clouds of points, one a class."""

from __future__ import annotations

import numpy as np

from hpcfl.learning.base import SYNTHETIC, Dataset, generator_of
from hpcfl.options.names import DATASETS

CLASSES, (FEATURES,) = DATASETS["synthetic"].classes, DATASETS["synthetic"].shape
TRAIN = 4000
TEST = 1000
# Of the centres' coordinates, where the noise has 1. Two centres are then about
# 0.5 sqrt(2 * 64) = 5.7 apart, and the best classifier is right about 98 times in 100.
SPREAD = 0.5


def make(seed: int) -> Dataset:
    """Draw centres, samples and their order from a seed.

    Inputs, of shape (64,), are the class's centre plus standard normal noise. Each of the 10
    classes has as many samples as the others.
    """
    generator = generator_of(seed, SYNTHETIC)
    centres = SPREAD * generator.standard_normal((CLASSES, FEATURES), np.float32)
    train_labels = generator.permutation(np.arange(TRAIN, dtype=np.int64) % CLASSES)
    test_labels = generator.permutation(np.arange(TEST, dtype=np.int64) % CLASSES)
    return Dataset(
        name="synthetic",
        train_inputs=centres[train_labels]
        + generator.standard_normal((TRAIN, FEATURES), np.float32),
        train_labels=train_labels,
        test_inputs=centres[test_labels] + generator.standard_normal((TEST, FEATURES), np.float32),
        test_labels=test_labels,
        classes=CLASSES,
    )
