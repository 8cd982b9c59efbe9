"""Where the devices' vectors come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import UPDATES

Vector = NDArray[np.floating]


class Updates(ABC):
    """Gives every device its vector of a round.

    Attributes
    ----------
    dim : int
        Number d of coordinates.
    weights : ndarray of float64 or None
        The devices' weights, where the source knows them, adding up to 1.
    total_weight : float or None
        What they added up to.
    """

    dim: int
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

    def vector(self, round_index: int, device: int) -> NDArray[np.float32]:
        seeds = np.random.SeedSequence(self._seed, spawn_key=(UPDATES, round_index, device))
        generator = np.random.Generator(np.random.SFC64(seeds))
        return generator.standard_normal(self.dim, np.float32) * np.float32(0.01)
