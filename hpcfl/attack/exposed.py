"""What a curious server makes of each protocol: what is left of an upload, and what is alone.

The server knows what the round has told it; with the devices that collude it takes off the masks
that it knows. What is left says how many values are exposed alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.cohort import Cohort
from hpcfl.algorithms.aggregation.messages import Flags
from hpcfl.algorithms.aggregation.secagg import SecAgg, pair_sign
from hpcfl.algorithms.aggregation.sparse import SparseSecAgg
from hpcfl.algorithms.aggregation.topology import Links, RingLinks
from hpcfl.comm.phases import Payload
from hpcfl.crypto.groups import Elements

# Devices, each with what its masks with another one follow from.
Known = list[tuple[int, bytes]]
Left = tuple[NDArray[np.int64], Elements]


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


@singledispatch
def strip(protocol: SecAgg, seen: Seen, id: int, upload: Payload, key: bytes, known: Known) -> Left:
    """Return which coordinates an honest survivor sent, and what is left of their values.

    `upload` is what it sent, `key` that of its private mask, which the server reconstructed,
    `known` the devices whose masks with it the server knows. MessageError if it is malformed.
    """
    where = np.arange(protocol.parameters.dim)[protocol.sent_in(seen.round_index)]
    values = protocol.read_values(upload, where.size, id)
    secrets = [secret for _, secret in known]
    signs = [-pair_sign(id, peer) for peer, _ in known]
    return where, protocol.summed_in.add_masks(values, [key, *secrets], [-1, *signs])


@strip.register
def _strip_sparse(
    protocol: SparseSecAgg, seen: Seen, id: int, upload: Payload, key: bytes, known: Known
) -> Left:
    where, values, _ = protocol.read_upload(upload, id)
    peers, secrets = [peer for peer, _ in known], [secret for _, secret in known]
    pairwise = protocol.summed_in.zeros(protocol.parameters.dim)
    np.add.at(pairwise, *protocol.pair_masks(seen.round_index, id, peers, secrets))
    private = protocol.summed_in.elements([key], [where.size])
    return where, protocol.summed_in.reduce(values.astype(np.int64) - private - pairwise[where])


@strip.register
def _strip_cohort(
    protocol: Cohort, seen: Seen, id: int, upload: Payload, key: bytes, known: Known
) -> Left:
    places = _places(seen)
    position = int(places[id])
    where = protocol.segments.coordinates(position)
    values = protocol.read_values(upload, where.size, id)
    others = [(peer, int(places[peer]), secret) for peer, secret in known]
    pairwise = protocol.pair_masks(seen.round_index, (id, position), others)
    private = protocol.summed_in.elements([key], [where.size])
    return where, protocol.summed_in.reduce(values.astype(np.int64) - private - pairwise)


@singledispatch
def alone(protocol: SecAgg, seen: Seen) -> tuple[float, float]:
    """Return how many values of honest survivors are masked with no other one, and the error.

    A mean over what the server does not know; its standard error is 0 where nothing is random.
    """
    lonely = [id for id in seen.ids if not seen.honest_neighbours(id)]
    return float(protocol.upload_dim * len(lonely)), 0.0


@alone.register
def _alone_sparse(protocol: SparseSecAgg, seen: Seen) -> tuple[float, float]:
    """Return mean and standard deviation of the number of values that are alone.

    Every pair of linked devices that shared keys selects a coordinate with the probability
    pi = 1 - x. Honest survivor i, linked with g_i other honest survivors and o_i devices else,
    is alone at a coordinate if none of the former pairs selects it, but one of the latter does:

        P_i = x**g_i (1 - x**o_i).

    Coordinates are independent. At one, two that are linked with each other have a pair in
    common, so that both are alone with x**(g_i + g_j - 1) (1 - x**o_i) (1 - x**o_j), and two
    that are not with P_i P_j.
    """
    row = {id: k for k, id in enumerate(seen.ids)}
    linked = np.zeros((len(row), len(row)), np.bool_)
    for id in row:
        linked[row[id], [row[other] for other in seen.honest_neighbours(id)]] = True
    inside = linked.sum(axis=1)
    x = 1 - float(protocol.pair_probability)
    some_outside = 1 - x ** (seen.neighbours() - inside)
    single = x**inside * some_outside
    first, second = np.nonzero(np.triu(linked))
    both = x ** (inside[first] + inside[second] - 1)
    both *= some_outside[first] * some_outside[second]
    covariance = both - single[first] * single[second]
    variance = float((single * (1 - single)).sum() + 2 * covariance.sum())
    dim = protocol.parameters.dim
    return float(dim * single.sum()), math.sqrt(dim * variance)


@alone.register
def _alone_cohort(protocol: Cohort, seen: Seen) -> tuple[float, float]:
    """Return how many values of honest survivors are alone in their cohorts.

    A device at position p sends the segments p to p + m - 1. Those from p + a are masked with one
    that is a positions ahead, those before p + m - b with one that is b behind. With the nearest
    honest survivors that it is linked with, it is alone from p + m - b to before p + a.
    """
    places, segments, total = _places(seen), protocol.segments, 0
    for id in seen.ids:
        position = int(places[id])
        others = places[seen.honest_neighbours(id)]
        ahead = int(np.min((others - position) % segments.ring, initial=segments.size))
        behind = int(np.min((position - others) % segments.ring, initial=segments.size))
        first, last = position + segments.size - behind, position + ahead
        if first < last:
            total += segments.bound(last) - segments.bound(first)
    return float(total), 0.0


def _places(seen: Seen) -> NDArray[np.int64]:
    """Return the devices' positions on the ring."""
    return cast(RingLinks, seen.links).position
