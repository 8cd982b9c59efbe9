"""Which rank holds which devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Placement:
    """Rank 0 is the server; the devices lie on the other ranks in blocks of consecutive ids.

    Attributes
    ----------
    devices : int
        Number N of devices, at least one a device rank.
    ranks : int
        Number of ranks, the server's included; 1 puts server and devices into one process.
    """

    devices: int
    ranks: int

    def local(self, rank: int) -> range:
        """Return the ids of the devices on `rank`."""
        if self.ranks == 1:
            return range(self.devices)
        if rank == 0:
            return range(0)
        holders = self.ranks - 1
        return range(
            (rank - 1) * self.devices // holders,
            rank * self.devices // holders,
        )

    def rank_of(self) -> NDArray[np.int64]:
        """Return the rank that holds each device, shape (N,)."""
        ranks = np.zeros(self.devices, np.int64)
        for rank in range(self.ranks):
            local = self.local(rank)
            ranks[local.start : local.stop] = rank
        return ranks
