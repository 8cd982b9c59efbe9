"""Where the devices' vectors come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import UPDATES

# Longer vectors are made again, and take no memory meanwhile.
KEPT_DIM = 1 << 20

Vector = NDArray[np.floating]


class Updates(ABC):
    """Gives every device its vector of a round."""

    dim: int
    # The devices' weights, where the source knows them, adding up to 1, and to what they added up.
    weights: NDArray[np.float64] | None = None
    total_weight: float | None = None

    @abstractmethod
    def vector(self, round_index: int, device: int) -> Vector:
        """Return a device's vector, shape (d,)."""


class SyntheticUpdates(Updates):
    """Independent normal coordinates of standard deviation 0.01, drawn from the run's seed."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim = dim
        self._seed = seed
        # A rank's only device asks twice: for its upload, and for the check of the sum.
        self._last: tuple[tuple[int, int], NDArray[np.float32]] | None = None

    def vector(self, round_index: int, device: int) -> NDArray[np.float32]:
        key = (round_index, device)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        seeds = np.random.SeedSequence(self._seed, spawn_key=(UPDATES, *key))
        generator = np.random.Generator(np.random.SFC64(seeds))
        vector = generator.standard_normal(self.dim, np.float32)
        vector *= np.float32(0.01)
        vector.flags.writeable = False
        self._last = (key, vector) if self.dim <= KEPT_DIM else None
        return vector
