"""Sources of the devices' vectors. Vectors are made before a round, outside its time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import UPDATES
from hpcfl.errors import HpcflError

# The devices' vectors are independent up to this total size. Larger ones could take more memory
# than there is, or more time to make than the rounds.
INDEPENDENT_BYTES = 1 << 28
# Larger vectors are parts of one stream, with starts among its first SPREAD coordinates.
SPREAD = 1 << 16

# The most bytes that a rank holds of vectors that take long to make or to read; see `Held`.
HELD_BYTES = 1 << 28

Vector = NDArray[np.floating]


class Held(dict[int, Vector]):
    """The vectors of a rank's devices, by id; those beyond `HELD_BYTES` are in temporary files."""

    def __setitem__(self, id: int, vector: Vector) -> None:
        self.pop(id, None)
        if vector.nbytes + sum(each.nbytes for each in self.values()) > HELD_BYTES:
            try:
                import tempfile

                with tempfile.TemporaryFile() as file:
                    vector.tofile(file)
                    vector = np.memmap(file, vector.dtype, "r")
            except OSError as error:
                raise HpcflError(
                    f"the vectors of this rank's devices take more than {HELD_BYTES >> 20} MiB and "
                    f"cannot be put into temporary files ({error.strerror or error}): let TMPDIR "
                    "name a folder with room for them, or start more ranks"
                ) from None
        super().__setitem__(id, vector)


class Updates(ABC):
    """Gives every device its vector of a round."""

    dim: int
    # The devices' weights, scaled to the sum 1, and their original sum, if the source has weights.
    weights: NDArray[np.float64] | None = None
    total_weight: float | None = None

    @abstractmethod
    def prepare(self, round_index: int, devices: Iterable[int]) -> None:
        """Make the vectors of these devices of this rank, and drop those of other rounds."""

    @abstractmethod
    def vector(self, round_index: int, device: int) -> Vector:
        """Return a device's vector, shape (d,); make it now if `prepare` did not."""


class SyntheticUpdates(Updates):
    """Normal coordinates of standard deviation 0.01, drawn from the run's seed.

    Vectors of different devices and rounds are independent if those of a round's `devices` take up
    to `INDEPENDENT_BYTES` together. Otherwise every vector is a slice of one stream with a random
    start.
    """

    def __init__(self, dim: int, seed: int, devices: int = 1) -> None:
        self.dim = dim
        self._seed = seed
        self._made: dict[tuple[int, int], NDArray[np.float32]] = {}
        self.independent = 4 * dim * devices <= INDEPENDENT_BYTES

    def prepare(self, round_index: int, devices: Iterable[int]) -> None:
        self._made.clear()
        self._made = {(round_index, id): self.vector(round_index, id) for id in devices}

    def vector(self, round_index: int, device: int) -> NDArray[np.float32]:
        key = (round_index, device)
        if key in self._made:
            return self._made[key]
        if self.independent:
            return self._normal(self.dim, *key)
        start = int(self._generator(*key).integers(SPREAD))
        return self._stream[start : start + self.dim]

    @cached_property
    def _stream(self) -> NDArray[np.float32]:
        return self._normal(self.dim + SPREAD)

    def _normal(self, size: int, *key: int) -> NDArray[np.float32]:
        vector = self._generator(*key).standard_normal(size, np.float32)
        vector *= np.float32(0.01)
        vector.flags.writeable = False
        return vector

    def _generator(self, *key: int) -> np.random.Generator:
        seeds = np.random.SeedSequence(self._seed, spawn_key=(UPDATES, *key))
        return np.random.Generator(np.random.SFC64(seeds))
