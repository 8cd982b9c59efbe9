"""Cohorts: every coordinate is summed over exactly m devices, all of them masked together.

SparseSecAgg lets pairs select coordinates; at one coordinate the pairs form a graph of many
components, and the server learns the sum over each. Here a coordinate belongs to a cohort of
m = round(alpha N) devices, and every pair of a cohort masks all that the cohort sends, so that the
server learns one sum over its survivors. As many values are sent as by SparseSecAgg, and no
locations: who sends what follows from the round's keys.

The devices are on a ring (see :mod:`hpcfl.algorithms.aggregation.topology`), n of them, in an order
drawn from the keys that all of them advertised. The coordinates are dealt out around the ring too,
in n segments of equal length, and the device at position p sends the segments p to p + m - 1.
Segment s then has the cohort of the m positions s - m + 1 to s, a device sends one run of places,
and two devices have a run in common: no location is drawn, sent or looked up.

Neighbouring coordinates belong to the same part of a model, and if one cohort had them all, the
luck of that cohort (who dropped out, whose data) would move the part as a whole. So coordinate l
does not lie at place l, but coordinates are dealt out in steps of the golden section of d: every
segment then has its coordinates spread over the vector as evenly as can be.

On the wire, ``masked_input`` is one group element for each coordinate of the run, and nothing else.
If devices vanish before they advertise keys, the cohorts are round(m n / N), so that a coordinate
has the same number of survivors on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import parse_vector
from hpcfl.algorithms.aggregation.secagg import SecAgg, SecAggDevice, SecAggServer, pair_sign
from hpcfl.algorithms.aggregation.topology import RingLinks, Topology, population_of, ring_of
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Payload
from hpcfl.crypto.groups import Group
from hpcfl.crypto.keys import SecretSource
from hpcfl.errors import BelowThresholdError, RefusedError, UsageError
from hpcfl.privacy.cohorts import below_floor_probability, cohort_size, smallest_cohort


@dataclass(frozen=True)
class Segments:
    """The places of the coordinates on a ring, in segments, and which of them a device sends.

    Attributes
    ----------
    dim : int
        Number d of coordinates.
    ring : int
        Number n of segments, and of positions.
    size : int
        Number of devices of a cohort.
    """

    dim: int
    ring: int
    size: int

    def dealt(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the coordinates that lie at `count` places from `start` on, in their order."""
        places = np.arange(start, start + count, dtype=np.uint64) % np.uint64(self.dim)
        return (places * np.uint64(golden_step(self.dim)) % np.uint64(self.dim)).astype(np.int64)

    def bound(self, segment: int) -> int:
        """Return where a segment begins; segment n + s is s, and begins d places later."""
        turns, rest = divmod(segment, self.ring)
        return turns * self.dim + rest * self.dim // self.ring

    def length(self, position: int) -> int:
        """Return the number of coordinates that the device at a position sends."""
        return self.bound(position + self.size) - self.bound(position)

    def coordinates(self, position: int) -> NDArray[np.int64]:
        """Return the coordinates that the device at a position sends, in their order."""
        return self.dealt(self.bound(position), self.length(position))

    def common(self, position: int, other: int) -> Iterator[tuple[bool, int, int]]:
        """Yield what the device at a position has in common with another.

        Yields
        ------
        first : bool
            Whether this device's run begins before the other's.
        start, stop : int
            The part of this device's run that both send.
        """
        ahead = (other - position) % self.ring
        own = self.bound(position)
        if 0 < ahead < self.size:
            yield True, self.bound(position + ahead) - own, self.length(position)
        behind = self.ring - ahead
        if 0 < behind < self.size:
            yield False, 0, self.bound(position - behind + self.size) - own


@lru_cache(maxsize=8)
def golden_step(dim: int) -> int:
    """Return the number nearest to the golden section of `dim` that has no divisor in common.

    Its multiples modulo `dim` are all numbers below `dim`, and any of them in a row lie as evenly
    as can be (the three-distance theorem).
    """
    nearest = round(dim * (math.sqrt(5) - 1) / 2)
    for distance in range(dim):
        for step in (nearest - distance, nearest + distance):
            if step > 0 and math.gcd(step, dim) == 1:
                return step
    raise AssertionError("unreachable: 1 has no divisor in common with any number")


class Cohort(SecAgg):
    """Secure aggregation of runs of coordinates within cohorts."""

    name = "cohort"
    sparse_upload = True

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if self.cohort_size < 2:
            raise UsageError(
                f"a cohort of alpha N = {parameters.alpha:g} x {parameters.devices} devices hides "
                f"nobody: raise alpha to at least {2 / parameters.devices:g}"
            )
        self._check_floor()

    def _topology(self) -> Topology:
        return ring_of(self.parameters)

    @property
    def cohort_size(self) -> int:
        """Number m of devices of a cohort: alpha N, rounded half up."""
        return cohort_size(self.parameters.devices, self.parameters.alpha)

    @property
    def arrival(self) -> float:
        """Probability m / N (1 - theta) that a coordinate of a device reaches the sum."""
        return self.arrival_on(self.parameters.devices)

    def arrival_on(self, ring: int) -> float:
        """Return the same where so many devices are on the ring, of which each sends a part."""
        return self.segments(ring).size / ring * (1 - self.parameters.dropout)

    @property
    def smallest_arrival(self) -> float:
        devices = self.parameters.devices
        rings = np.arange(self.parameters.threshold, devices + 1)
        # As `segments` rounds, for all rings at once.
        sizes = np.rint(self.cohort_size * rings / devices)
        parts = (sizes / rings)[sizes >= 2]
        return float(parts.min()) * (1 - self.parameters.dropout) if parts.size else self.arrival

    @property
    def largest_upload(self) -> int:
        # One segment more, for the rounding where devices vanished before the ring was made.
        segments = min(self.cohort_size + 1, self.parameters.devices)
        return 4 * math.ceil(segments / self.parameters.devices * self.parameters.dim) + 4

    def _below(self, floor: int) -> float:
        """Return at most how likely it is that any cohort has fewer honest survivors than this."""
        devices = self.parameters.devices
        return below_floor_probability(
            population_of(self.parameters), self.cohort_size, floor, blocks=devices
        )

    def honest_in_sum(self, bernoulli: bool = False) -> int:
        """Return the largest floor that all cohorts keep, but with 2 to the minus security bits."""
        failure = 2.0**-self.parameters.security_bits
        model = "bernoulli" if bernoulli else "exact"
        population = replace(population_of(self.parameters), model=model)
        floor = 1
        while floor < self.cohort_size and failure >= below_floor_probability(
            population, self.cohort_size, floor + 1, blocks=self.parameters.devices
        ):
            floor += 1
        return floor

    def _check_floor(self) -> None:
        floor, devices = self.parameters.min_cohort, self.parameters.devices
        failure = 2.0**-self.parameters.security_bits
        if floor == 1 or self._below(floor) <= failure:
            return
        found = (
            f"one of the {devices} cohorts of {self.cohort_size} devices may have fewer than "
            f"{floor} honest survivors, with a probability of up to {self._below(floor):.2g}, "
            f"which is above 2^-{self.parameters.security_bits}"
        )
        try:
            size = smallest_cohort(population_of(self.parameters), floor, devices, failure)
        except UsageError:
            raise UsageError(f"{found}; so may all devices together: lower --min-cohort") from None
        raise UsageError(
            f"{found}: raise alpha to {size / devices:g}, for cohorts of {size}, or lower "
            "--min-cohort or --security-bits"
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"cohort_size": self.cohort_size}

    def promises(self) -> list[str]:
        floor = max(2, self.parameters.min_cohort)
        return [
            *super().promises(),
            f"every coordinate is the sum of a cohort of {self.cohort_size}; one of the "
            f"{self.parameters.devices} cohorts has fewer than {floor} honest survivors with a "
            f"probability of at most {self._below(floor):.2g}",
        ]

    def segments(self, ring: int) -> Segments:
        """Return the segments on a ring of this many devices."""
        size = round(self.cohort_size * ring / self.parameters.devices)
        return Segments(self.parameters.dim, ring, size)

    def device(self, id: int, round_index: int, secrets: SecretSource) -> CohortDevice:
        return CohortDevice(self, id, round_index, secrets)

    def server(self, round_index: int, model: NDArray[np.float32]) -> CohortServer:
        return CohortServer(self, round_index, model)

    def pair_masks(
        self,
        round_index: int,
        segments: Segments,
        own: tuple[int, int],
        others: list[tuple[int, int, bytes]],
    ) -> NDArray[np.int64]:
        """Return what a device adds to its run for others, with its signs.

        Parameters
        ----------
        round_index : int
            The round.
        segments : Segments
            Who sends what.
        own : tuple of int
            The device's id and position.
        others : list of tuple
            Id, position and common secret of each of the others.

        Returns
        -------
        ndarray of int64, shape (run,)
        """
        id, position = own
        run = np.zeros(segments.length(position), np.int64)
        for peer, place, secret in others:
            for first, start, stop in segments.common(position, place):
                # Of two runs that a pair has in common, each has a key of its own.
                leader = id if first else peer
                (key,) = self.pair_keys(
                    round_index, id, [peer], [secret], f"additive mask of the run of {leader}"
                )
                add_stream(self.parameters.arithmetic, run[start:stop], key, pair_sign(id, peer))
        return run


def add_stream(group: Group, run: NDArray[np.int64], key: bytes, sign: int) -> None:
    """Add the elements of a key to `run`, in place, with a sign."""
    elements = group.elements([key], [run.size])
    (np.add if sign > 0 else np.subtract)(run, elements, out=run)


class CohortDevice(SecAggDevice):
    """A device that sends its run of coordinates."""

    _protocol: Cohort

    @property
    def _segments(self) -> Segments:
        return self._protocol.segments(self._links.ring)

    def receive_advertise_keys(self, payload: Payload) -> None:
        super().receive_advertise_keys(payload)
        if self._segments.size < 2:
            raise RefusedError(
                f"device {self.id} refuses to send alone: with {self._links.ring} devices on the "
                f"ring, nobody else is in its cohorts"
            )

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the run of the quantised vector plus the private mask plus the pairs' masks."""
        self._upload_once()
        segments, holders = self._segments, self._links.holders
        position, middle = self._links.position, holders.index(self.id)
        # Slots are places around the ring: of those, only cohorts have anything in common.
        near = [
            (k, (position + k - middle) % segments.ring)
            for k in np.flatnonzero(self._have).tolist()
            if holders[k] != self.id
        ]
        near = [(k, place) for k, place in near if any(segments.common(position, place))]
        secrets = self._agree(self._mask_pair.private, [self._links.mask_key(k) for k, _ in near])
        others = [
            (holders[k], place, secret) for (k, place), secret in zip(near, secrets, strict=True)
        ]
        masks = self._protocol.pair_masks(self._round, segments, (self.id, position), others)
        key = self._protocol.private_mask_key(self._round, self.id, self._seed)
        add_stream(self._parameters.arithmetic, masks, key, 1)
        masks += self._quantise(vector[self.sent()])
        return self._parameters.arithmetic.reduce(masks).astype("<u4", copy=False).view(np.uint8)

    @property
    def _arrival(self) -> float:
        return self._protocol.arrival_on(self._links.ring)

    def sent(self) -> NDArray[np.int64]:
        return self._segments.coordinates(self._links.position)


class CohortServer(SecAggServer):
    """A server that adds up runs of coordinates."""

    _protocol: Cohort
    _links: RingLinks

    @property
    def _segments(self) -> Segments:
        return self._protocol.segments(self._links.size)

    @property
    def arrival(self) -> float:
        """Probability that a coordinate of a device is in the sum, as devices scaled theirs."""
        return self._protocol.arrival_on(self._links.size)

    def received_from(self, id: int) -> NDArray[np.int64]:
        """Return the coordinates that a survivor sent, in its run's order: ndarray of int64."""
        return self._segments.coordinates(int(self._links.position[id]))

    def finish_advertise_keys(self) -> None:
        super().finish_advertise_keys()
        if self._segments.size < 2:
            raise BelowThresholdError(
                f"round {self._round} cannot go on: only {self._links.size} of "
                f"{self._parameters.devices} devices advertised keys, which leaves nobody to share "
                f"a cohort with; raise alpha"
            )

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Add a device's run to the sum."""
        self._check_sharer(sender)
        segments, position = self._segments, int(self._links.position[sender])
        values = parse_vector(
            payload, "<u4", segments.length(position), "masked_input", f"device {sender}"
        )
        self._check_elements(values, f"device {sender}")
        self._admit(sender)
        self._add_run(position, values.astype(np.int64), 1)

    def _add_run(self, position: int, run: NDArray[np.int64], sign: int) -> None:
        """Add a run to the sum, which is kept by place; it may wrap around the end."""
        start = self._segments.bound(position)
        first = min(run.size, self._sum.size - start)
        self._sum[start : start + first] += sign * run[:first]
        self._sum[: run.size - first] += sign * run[first:]

    def _remove_masks(self, seeds: list[bytes], private: list[bytes]) -> None:
        segments, group = self._segments, self._group
        for id, seed in zip(self.survivors, seeds, strict=True):
            position = int(self._links.position[id])
            key = self._protocol.private_mask_key(self._round, id, seed)
            elements = group.elements([key], [segments.length(position)])
            self._add_run(position, elements.astype(np.int64), -1)
        for id, key in zip(self.dropped, private, strict=True):
            position = int(self._links.position[id])
            places = {
                peer: int(self._links.position[peer])
                for peer in self._links.neighbours(id, self._survived)
            }
            near = [peer for peer, place in places.items() if any(segments.common(position, place))]
            others = [
                (peer, places[peer], secret)
                for peer, secret in zip(near, self._agree(key, near), strict=True)
            ]
            # What the dropped device would have added is what its peers' masks lack to cancel.
            missing = self._protocol.pair_masks(self._round, segments, (id, position), others)
            self._add_run(position, missing, 1)
        total = np.empty_like(self._sum)
        total[segments.dealt(0, self._sum.size)] = self._sum
        self._unmasked = group.reduce(total)
