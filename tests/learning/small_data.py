"""A few random images for tests of training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHAPE, CLASSES = (1, 8, 8), 5


def data(samples: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((samples, *SHAPE), dtype=np.float32)
    return inputs, rng.integers(CLASSES, size=samples)
