"""What a curious server knows of a round that has ended, whose masks it then takes off.

Protocols say with it what is left of an upload, and how many values are exposed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.reconstruction import Flags
from hpcfl.algorithms.aggregation.topology import Links


@dataclass(frozen=True)
class Seen:
    """Who did what in a round."""

    round_index: int
    links: Links  # who shares masks with whom
    shared: Flags  # shape (N,): who shared keys, and so is masked with
    honest: Flags  # shape (N,): the survivors that do not collude with the server

    @property
    def ids(self) -> list[int]:
        """The honest survivors, increasing."""
        return np.flatnonzero(self.honest).tolist()

    def honest_neighbours(self, id: int) -> list[int]:
        """Return the honest survivors that a device is linked with."""
        return self.links.neighbours(id, self.honest)

    def neighbours(self) -> NDArray[np.int64]:
        """Return how many devices that shared keys each honest survivor is linked with."""
        return np.array([len(self.links.neighbours(id, self.shared)) for id in self.ids], np.int64)
