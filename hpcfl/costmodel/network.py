"""Hockney's model of the cost of messages between the ranks of another cluster.

A message of m bytes takes latency + m / bandwidth (Hockney 1994) between any two nodes, and
messages compete only for the links at their ends. The patterns consist of such messages:

- broadcast of m bytes to p - 1 ranks: the faster of a binomial tree (log2(p) messages in sequence)
  and a scatter with an allgather (log2(p) + p - 1 messages and 2 (p - 1) / p of the bytes; Thakur,
  Rabenseifner and Gropp 2005)
- gather and scatter: one message from (or to) each rank that takes part, in sequence at the
  server's port
- route: a message from every rank to every other, in sequence at each rank's port
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
        """Return the seconds of a pattern's messages, without computing.

        Parameters
        ----------
        pattern : str
            ``broadcast``, ``gather`` (or the scatter that is its mirror image) or ``route``.
        size : float
            Bytes of the broadcast message, or the bytes that each rank sends.
        ranks : int
            Number of all ranks.
        workers : int
            Number of ranks that take part in a gather or route.
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
    """Return the network from the options of `hpcfl predict`, or None for this machine's ranks."""
    if options.network_gbps is None:
        return None
    return Network(options.network_gbps, options.network_us)
