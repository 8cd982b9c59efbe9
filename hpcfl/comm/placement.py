"""Which rank holds which devices."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Placement:
    """The rank of every device."""

    homes: NDArray[np.int64]  # shape (N,)
    ranks: int  # the server's included
    servers: int = 1  # of the ranks, the first ones, that are the server together

    @classmethod
    def even(cls, devices: int, ranks: int, servers: int = 1) -> Placement:
        """Return the placement with the server on the first ranks, the devices on the others.

        They are dealt out in turns, so that any devices of consecutive ids keep all ranks busy. A
        single rank holds the server and all devices.
        """
        turns = np.arange(devices)
        homes = turns % (ranks - servers) + servers if ranks > 1 else np.zeros_like(turns)
        return cls(homes, ranks, servers)

    @property
    def devices(self) -> int:
        """Number N of devices."""
        return self.homes.size

    def local(self, rank: int) -> list[int]:
        """Return the ids of the devices on `rank`, in increasing order."""
        return np.flatnonzero(self.homes == rank).tolist()

    def select(self, ids: Sequence[int]) -> Placement:
        """Return the placement of some devices, numbered anew from 0 in increasing order."""
        return Placement(self.homes[list(ids)], self.ranks, self.servers)


def within(ids: Sequence[int], window: range) -> Sequence[int]:
    """Return those of some ids, in increasing order, that a window has."""
    return ids[bisect_left(ids, window.start) : bisect_left(ids, window.stop)]
