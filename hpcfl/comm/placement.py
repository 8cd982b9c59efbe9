"""Which rank holds which devices."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Placement:
    """Every rank holds a block of consecutive device ids."""

    starts: tuple[int, ...]  # the first id on each rank, and the number N of devices at the end

    @classmethod
    def even(cls, devices: int, ranks: int) -> Placement:
        """Return the placement with the server on rank 0 and the devices spread over the others.

        A single rank holds the server and all devices.
        """
        if ranks == 1:
            return cls((0, devices))
        return cls((0, *(rank * devices // (ranks - 1) for rank in range(ranks))))

    @property
    def devices(self) -> int:
        """Number N of devices."""
        return self.starts[-1]

    @property
    def ranks(self) -> int:
        """Number of ranks, the server's included."""
        return len(self.starts) - 1

    def local(self, rank: int) -> range:
        """Return the ids of the devices on `rank`."""
        return range(self.starts[rank], self.starts[rank + 1])

    def rank_of(self) -> NDArray[np.int64]:
        """Return the rank that holds each device, shape (N,)."""
        return np.repeat(np.arange(self.ranks), np.diff(self.starts))

    def select(self, ids: Sequence[int]) -> Placement:
        """Return the placement of some devices, numbered anew from 0 in increasing order."""
        return Placement(tuple(bisect_left(ids, start) for start in self.starts))
