"""Which rank holds which devices and helpers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfl.values import dataclass

SERVER_RANK = 0


@dataclass(frozen=True, eq=False)
class Placement:
    """The rank of every device, with ids 0 to N - 1, and of every helper, with ids from N on."""

    homes: NDArray[np.int64]  # shape (N + K,)
    ranks: int  # the server's included
    servers: int = 1  # number of ranks, the first ones, that form the server
    helpers: int = 0  # K, each on its own rank if there are several ranks

    @classmethod
    def even(cls, devices: int, ranks: int, servers: int = 1, helpers: int = 0) -> Placement:
        """Return the placement with the server on the first ranks, then helpers, then devices.

        Devices are assigned to ranks in turn, so that any consecutive ids keep all ranks busy. A
        single rank holds all parties.
        """
        if ranks == 1:
            return cls(np.zeros(devices + helpers, np.int64), ranks, servers, helpers)
        others = servers + helpers
        turns = np.arange(devices) % (ranks - others) + others
        return cls(np.append(turns, np.arange(servers, others)), ranks, servers, helpers)

    @property
    def parties(self) -> int:
        """Number N + K of devices and helpers."""
        return self.homes.size

    @property
    def devices(self) -> int:
        """Number N of devices."""
        return self.parties - self.helpers

    def parties_on(self, rank: int) -> list[int]:
        """Return the ids of devices and helpers on `rank`, in increasing order."""
        return np.flatnonzero(self.homes == rank).tolist()

    def local(self, rank: int) -> list[int]:
        """Return the ids of the devices on `rank`, in increasing order."""
        return np.flatnonzero(self.homes[: self.devices] == rank).tolist()

    def select(self, ids: Sequence[int]) -> Placement:
        """Return the placement of some devices, renumbered from 0, and of all helpers."""
        homes = np.append(self.homes[list(ids)], self.homes[self.devices :])
        return Placement(homes, self.ranks, self.servers, self.helpers)


def within(ids: Sequence[int], window: range) -> Sequence[int]:
    """Return the ids within a window; `ids` are in increasing order."""
    return ids[bisect_left(ids, window.start) : bisect_left(ids, window.stop)]
