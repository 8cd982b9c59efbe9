"""What messages cost among the ranks of a cluster that is not here: Hockney's model.

A message of m bytes takes latency + m / bandwidth (Hockney 1994), whichever nodes its ends are on,
and no two messages share a link but at their ends. The patterns are made of such messages:

- broadcast of m bytes to p - 1 ranks: the faster of a binomial tree, log2(p) messages one after the
  other, and of a scatter with an allgather, log2(p) + p - 1 messages and 2 (p - 1) / p of the bytes
  (Thakur, Rabenseifner and Gropp 2005)
- gather, and scatter: a message from each of the ranks that have something to send, one after the
  other at the server's port
- route: a message from every rank to every other, one after the other at each rank's port
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcfl.options.predict import PredictOptions


@dataclass(frozen=True)
class Network:
    """The network between the ranks of a cluster."""

    gbps: float = 100.0  # of a rank in either direction, in 10^9 bits a second
    latency_us: float = 2.0

    def __str__(self) -> str:
        return f"a network of {self.gbps:g} Gbit/s a rank and {self.latency_us:g} us latency"

    def seconds(self, pattern: str, size: float, ranks: int, workers: int) -> float:
        """Return the seconds of a pattern, without what computes beside it.

        Parameters
        ----------
        pattern : str
            ``broadcast``, ``gather`` (or the scatter that is its mirror image) or ``route``.
        size : float
            Bytes of the broadcast message; else those that a rank sends.
        ranks : int
            All ranks.
        workers : int
            Ranks that send or receive something in a gather or route.
        """
        latency, each = 1e-6 * self.latency_us, 8e-9 * size / self.gbps
        if pattern == "broadcast":
            rounds = math.ceil(math.log2(ranks))
            tree = rounds * (latency + each)
            pieces = (rounds + ranks - 1) * latency + 2 * (ranks - 1) / ranks * each
            return min(tree, pieces)
        if pattern == "gather":
            return workers * (latency + each)
        return (workers - 1) * latency + each


def network_of(options: PredictOptions) -> Network | None:
    """Return the network that `hpcfl predict` was asked for, None for this machine's ranks."""
    if options.network_gbps is None:
        return None
    return Network(options.network_gbps, options.network_us)
