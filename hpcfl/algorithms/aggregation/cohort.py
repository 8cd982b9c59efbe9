"""Cohorts: every coordinate is summed over exactly m devices, all of them masked together.

In SparseSecAgg pairs of devices select coordinates, and the server learns the sum over each
component of a graph. Here a coordinate belongs to a cohort of m = round(alpha N) devices, and the
server learns one sum over the cohort's survivors. Devices send as many values as there, but no
locations: the round's keys determine which device sends which coordinates.

The N devices are on a ring (see :mod:`hpcfl.algorithms.aggregation.topology`), in an order drawn
after all keys are advertised. The coordinates are dealt out around the ring too, in N
segments of equal length, and the device at position p sends the segments p to p + m - 1.
The m positions s - m + 1 to s are then the cohort of segment s. A device sends one run of places,
and the places that two devices share form a run: no location is drawn, sent or looked up.

Coordinates are dealt out in steps of the golden section of d, not in order. A cohort with few
survivors then affects places all over the model, not one part of it.

On the wire, ``masked_input`` is one group element for each coordinate of the run, and nothing else.
The request to unmask ends with a bitmap of the survivors at the 2 m - 1 positions around a device.
From it the device counts the survivors of each of its cohorts, and refuses if a cohort has too few
for the promise (:class:`Floor`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.messages import Flags, from_server
from hpcfl.algorithms.aggregation.promises import Outcome, Promise
from hpcfl.algorithms.aggregation.secagg import (
    SecAgg,
    SecAggDevice,
    SecAggServer,
    SecAggState,
    ServerState,
    pair_sign,
)
from hpcfl.algorithms.aggregation.topology import Request, RingLinks, Topology, ring_of
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Method, Payload
from hpcfl.crypto import keys
from hpcfl.crypto.groups import Elements, Sums
from hpcfl.errors import UsageError
from hpcfl.options.protocols import (
    CohortOptions,
    CommonOptions,
    GraphOptions,
    MaskingOptions,
    QuantisedOptions,
    SparseOptions,
    ThreatOptions,
    TransportOptions,
)
from hpcfl.privacy.masking import InCohorts, largest_degree, ring_degree
from hpcfl.privacy.ring import below_floor, fewest_survivors, log2, refused
from hpcfl.privacy.threat import Threat
from hpcfl.report.formats import counted
from hpcfl.values import dataclass, field, replace

Value = TypeVar("Value", bound=np.generic)
# Number of places that are dealt at once and fit the cache.
DEALT_AT_ONCE = 1 << 13


@dataclass(frozen=True)
class Segments:
    """The places of the coordinates on a ring, in segments, and the places that a device sends."""

    dim: int  # number d of coordinates
    ring: int  # number N of segments, and of positions
    size: int  # number of devices of a cohort

    def dealt(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the coordinates at `count` places from `start` on, in the order of the places."""
        step, dim = golden_step(self.dim), np.uint64(self.dim)
        # Multiples of the step, block by block: each block is the first one shifted.
        multiples = first_multiples(self.dim, min(self.dim, DEALT_AT_ONCE))
        found = np.empty(count, np.uint64)
        for first in range(0, count, DEALT_AT_ONCE):
            block = found[first : first + DEALT_AT_ONCE]
            begin = np.uint64((start + first) * step % self.dim)
            np.add(multiples[: block.size], begin, out=block)
            # A value is below 2 d. Minus d, it is below d, or it wraps around and becomes large.
            np.minimum(block, block - dim, out=block)
        return found.view(np.int64)

    def in_coordinates(self, by_place: NDArray[Value]) -> NDArray[Value]:
        """Reorder values by place to values by coordinate, shape (d,)."""
        found = np.empty_like(by_place)
        for first in range(0, self.dim, DEALT_AT_ONCE):
            values = by_place[first : first + DEALT_AT_ONCE]
            found[self.dealt(first, values.size)] = values
        return found

    def bound(self, segment: int) -> int:
        """Return the first place of a segment; segment N + s is s, d places further on."""
        turns, rest = divmod(segment, self.ring)
        return turns * self.dim + rest * self.dim // self.ring

    def length(self, position: int) -> int:
        """Return the number of coordinates that the device at a position sends."""
        return self.bound(position + self.size) - self.bound(position)

    @property
    def longest(self) -> int:
        """Maximum number of coordinates that a device sends.

        Bounds are multiples of d / N, rounded down. The rounding errors are all the multiples of
        gcd(d, N) / N below 1, so the length of some device's run is rounded up.
        """
        return -(-self.size * self.dim // self.ring)

    def coordinates(self, position: int) -> NDArray[np.int64]:
        """Return the coordinates that the device at a position sends, in the order of its run."""
        return self.dealt(self.bound(position), self.length(position))

    def common(self, position: int, other: int) -> Iterator[tuple[bool, int, int]]:
        """Yield the parts of the run of the device at a position that another also sends.

        Each item says whether this device's run begins before the other's, and gives the start and
        stop of the common part within this device's run.
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
    """Return the number coprime to `dim` that is nearest to its golden section.

    Its multiples modulo `dim` are all numbers below `dim`, and any consecutive ones are spread as
    evenly as possible (the three-distance theorem).
    """
    nearest = round(dim * (math.sqrt(5) - 1) / 2)
    for distance in range(dim):
        for step in (nearest - distance, nearest + distance):
            if step > 0 and math.gcd(step, dim) == 1:
                return step
    raise AssertionError("unreachable: 1 has no divisor in common with any number")


@lru_cache(maxsize=8)
def first_multiples(dim: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` multiples of the golden step modulo `dim`, starting with 0."""
    found = np.arange(count, dtype=np.uint64) * np.uint64(golden_step(dim)) % np.uint64(dim)
    found.setflags(write=False)
    return found


def cohort_size(devices: int, alpha: float) -> int:
    """Return the number m of devices in a cohort: alpha N, rounded half up, and at least 1."""
    return max(1, int(Fraction(repr(float(alpha))) * devices + Fraction(1, 2)))


def linking_degree(size: int, devices: int) -> int:
    """Return the smallest even degree that makes all devices of a cohort neighbours."""
    return min(2 * (size - 1), largest_degree(devices))


@dataclass(frozen=True)
class Floor(Promise):
    """Every cohort has at least `floor` honest survivors, whichever devices drop out.

    The colluders are fixed before the ring is drawn. A cohort therefore rarely holds more than
    `colluding` of them, even if an adversary that knows the ring chooses the dropouts. Of at least
    `floor` + `colluding` survivors, at least `floor` are honest.
    """

    threat: Threat
    size: int  # number m of devices of a cohort
    floor: int  # number of promised honest survivors; 1 is no promise
    # Accepted probability that a cohort of a round has more colluders than `colluding`.
    accepted: float

    @property
    def colluding(self) -> int:
        """Maximum number of colluders in any cohort, except with the accepted probability."""
        return self.threat.most_colluding(self.size, self.accepted, self.threat.devices)

    @property
    def least(self) -> int:
        """Minimum number of survivors of a cohort to unmask it."""
        return self.floor + self.colluding if self.floor > 1 else 0

    @property
    def claim(self) -> str:
        cohort = f"every coordinate is summed over a cohort of {self.size} devices"
        devices = self.threat.devices
        if self.floor == 1:
            chance = below_floor(self.threat, self.size, 2)
            return (
                f"{cohort}. How many of them are honest survivors is not promised (see "
                f"--min-cohort): if {self.threat} collude and up to "
                f"{counted(self.threat.dropped, 'other')} drop out, one of the {devices} cohorts "
                f"has fewer than 2 with probability up to {chance:.2g}"
            )
        return (
            f"{cohort}, of which at least {self.least} survive, or devices refuse to unmask. "
            f"If {self.threat} collude, each of the {devices} cohorts then has at least "
            f"{self.floor} honest survivors, whoever drops out, except with probability "
            f"{log2(self.exceeded)}"
        )

    @property
    def exceeded(self) -> float:
        """Probability that any cohort has more colluders than `colluding`."""
        beyond = self.threat.more_colluding(self.size, self.colluding)
        return min(1.0, self.threat.devices * beyond)

    @property
    def worst(self) -> float:
        return self.exceeded if self.floor > 1 else 0.0

    def broken(self, outcome: Outcome) -> str | None:
        fewest = int(outcome.cohorts.min(initial=self.size))
        if fewest >= self.least:
            return None
        return (
            f"a cohort of {self.size} devices has {fewest} survivors, of which {self.colluding} "
            f"may collude, and {self.floor} honest ones were promised: {self.least} are needed"
        )


@dataclass
class CohortDeviceState(SecAggState):
    """What a device keeps in addition: the survivors at the positions around it."""

    around: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass
class CohortServerState(ServerState):
    """What the server keeps in addition: the sum, by place."""

    total: Sums = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)


class CohortDevice(SecAggDevice):
    """A device that sends its run of coordinates."""

    _protocol: Cohort
    state: CohortDeviceState
    state_class = CohortDeviceState

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the run of the quantised vector plus the private and the pairwise masks."""
        self._once("upload")
        segments, holders = self._protocol.segments, self._links.holders
        position = self._links.position
        # Of the holders, only those at a distance below m share coordinates with this device.
        middle = self._links.numbers[holders.index(self.id)]
        places = {
            holders[k]: (position + self._links.numbers[k] - middle) % segments.ring
            for k in np.flatnonzero(self.state.have).tolist()
        }
        near = [id for id, place in places.items() if any(segments.common(position, place))]
        ids, secrets = self._mask_secrets(near)
        others = [(id, places[id], secret) for id, secret in zip(ids, secrets, strict=True)]
        elements = self._protocol.elements(vector, self.sent(), self.id, self._round)
        masks = self._protocol.pair_masks(self._round, (self.id, position), others)
        key = self._protocol.private_mask_key(self._round, self.id, self.state.seed)
        group = self._parameters.arithmetic
        group.add_each([masks], [key], [1])
        masks += elements
        return group.pack(group.reduce(masks))

    def sent(self) -> NDArray[np.int64]:
        return self._protocol.segments.coordinates(self._links.position)

    def receive_unmask(self, payload: Payload) -> None:
        """Check the request, and that each cohort of this device has enough survivors."""
        around = 2 * self._protocol.cohort_size - 1
        cut = payload.size - -(-around // 8)
        if cut < 0:
            raise from_server("unmask", f"{payload.size} bytes hold no list of cohorts")
        self.state.around = np.unpackbits(payload[cut:], count=around).view(np.bool_)
        super().receive_unmask(payload[:cut])

    def _outcome(self, request: Request) -> Outcome:
        cohorts = _counts(self.state.around, self._protocol.cohort_size)
        return replace(super()._outcome(request), cohorts=cohorts)


class CohortServer(SecAggServer):
    """A server that adds up runs of coordinates."""

    _protocol: Cohort
    _links: RingLinks

    state: CohortServerState
    state_class = CohortServerState

    def received_from(self, id: int) -> NDArray[np.int64]:
        """Return the coordinates that a survivor sent, in its run's order: ndarray of int64."""
        return self._protocol.segments.coordinates(int(self._links.position[id]))

    def _add_upload(self, sender: int, payload: Payload) -> None:
        """Add a device's run to the sum."""
        position = int(self._links.position[sender])
        length = self._protocol.segments.length(position)
        values = self._protocol.read_values(payload, length, sender)
        self._add_run(position, values, 1)

    def outcome(self) -> Outcome:
        return replace(super().outcome(), cohorts=self.survivors_of_cohorts())

    def weight_of_places(self) -> NDArray[np.float64]:
        """Return for each coordinate the weight of the devices in its sum, shape (d,)."""
        segments, ring = self._protocol.segments, self._links.order.size
        weights = self._parameters.weights
        each = np.full(ring, 1 / ring) if weights is None else weights
        places = np.arange(1 - segments.size, ring) % ring
        values = (each * self.state.survived)[self._links.order[places]]
        # Exactly 0 if no device of a cohort survived.
        weight = np.lib.stride_tricks.sliding_window_view(values, segments.size).sum(axis=1)
        bounds = [segments.bound(segment) for segment in range(ring + 1)]
        return segments.in_coordinates(np.repeat(weight, np.diff(bounds)))

    def survivors_of_cohorts(self) -> NDArray[np.int64]:
        """Return the number of survivors of each segment's cohort, shape (N,)."""
        size, ring = self._protocol.cohort_size, self._links.order.size
        # The cohort of segment s is at the positions s - m + 1 to s.
        places = np.arange(1 - size, ring) % ring
        return _counts(self.state.survived[self._links.order[places]], size)

    def send_unmask(self, receiver: int | None = None) -> Payload | None:
        """Return the request, and the survivors at the positions around a device."""
        request = super().send_unmask(receiver)
        if request is None or receiver is None:
            return None
        size, ring = self._protocol.cohort_size, self._links.order.size
        places = (self._links.position[receiver] + np.arange(1 - size, size)) % ring
        around = np.packbits(self.state.survived[self._links.order[places]])
        return np.concatenate([request, around])

    def _add_run(self, position: int, run: Sums, sign: int) -> None:
        """Add a run, which may wrap around the end, to the sum, which is kept by place."""
        if not self.state.total.size:
            self.state.total = self._protocol.summed_in.zeros(self._dim)
        total, start = self.state.total, self._protocol.segments.bound(position)
        first = min(run.size, total.size - start)
        add = np.add if sign > 0 else np.subtract
        for places, part in (
            (total[start : start + first], run[:first]),
            (total[: run.size - first], run[first:]),
        ):
            add(places, part, out=places)

    def _masked_with(self, id: int) -> list[int]:
        position, common = self._links.position.tolist(), self._protocol.segments.common
        peers = super()._masked_with(id)
        return [peer for peer in peers if any(common(position[id], position[peer]))]

    def _remove_masks(self) -> Elements:
        segments, group = self._protocol.segments, self._protocol.summed_in
        for id, key in zip(self.survivors, self.private_mask_keys(), strict=True):
            position = int(self._links.position[id])
            private = group.zeros(segments.length(position))
            group.add_each([private], [key], [1])
            self._add_run(position, private, -1)
        for id in self.dropped:
            position = int(self._links.position[id])
            others = [
                (peer, int(self._links.position[peer]), secret)
                for peer, secret in zip(*self._secrets_with(id), strict=True)
            ]
            # The masks that the dropped device would have added cancel those of its peers.
            missing = self._protocol.pair_masks(self.round_index, (id, position), others)
            self._add_run(position, missing, 1)
        total, self.state.total = self.state.total, self.state.total[:0].copy()
        return segments.in_coordinates(group.reduce(total))


def _counts(flags: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Return the number of set flags in every window of `size` flags, in linear time."""
    before = np.cumsum(np.append(0, flags), dtype=np.int64)
    return before[size:] - before[:-size]


class Cohort(SecAgg):
    """Secure aggregation of runs of coordinates within cohorts, as `segments` assigns them."""

    name = "cohort"
    options = (
        *(CommonOptions, QuantisedOptions, GraphOptions, ThreatOptions),
        *(TransportOptions, SparseOptions, CohortOptions),
    )
    sparse_upload = True
    device_class = CohortDevice
    server_class = CohortServer
    # A range of an upload does not correspond to a fixed range of coordinates.
    steps = tuple(replace(step, receive_part=None, by_all_ranks=False) for step in SecAgg.steps)

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        if self.cohort_size < 2:
            raise UsageError(
                f"a cohort of alpha N = {parameters.alpha:g} x {parameters.devices} devices hides "
                f"nobody: raise alpha to at least {2 / parameters.devices:g}"
            )
        self.segments = Segments(parameters.dim, parameters.devices, self.cohort_size)
        self._check_floor()

    def _topology(self) -> Topology:
        if self.parameters.min_cohort == 1:
            return ring_of(self.parameters)
        # A floor holds whichever devices drop out, so no dropouts may cut a cohort in two.
        least = linking_degree(self.cohort_size, self.parameters.devices)
        return ring_of(self.parameters, least)

    @property
    def cohort_size(self) -> int:
        """Number m of devices of a cohort: alpha N, rounded half up."""
        return cohort_size(self.parameters.devices, self.parameters.alpha)

    @property
    def inclusion(self) -> float:
        return self.cohort_size / self.parameters.devices

    def most_in_sum(self, devices: int) -> tuple[int, float]:
        size = cohort_size(devices, self.parameters.alpha)
        weights = self.parameters.weights
        if weights is None:
            return size, size / devices
        # The devices with the most weight may form a cohort.
        return size, float(np.sort(weights)[-size:].sum())

    def weight_in_sum(self, server: CohortServer) -> NDArray[np.float64]:
        """Return for each coordinate its cohort's surviving weight, divided by the inclusion."""
        return server.weight_of_places() / self.inclusion

    @property
    def largest_message(self) -> int:
        return self.summed_in.wire_bytes(self.segments.longest)

    @property
    def _floor(self) -> Floor:
        plan, size = self.parameters, self.cohort_size
        return Floor(self.threat, size, plan.min_cohort, 2.0**-plan.security_bits)

    def honest_among(self, survivors: int) -> int:
        """Return the floor; the number of all survivors does not tell a cohort's survivors."""
        return self.honest_in_sum()

    def _check_floor(self) -> None:
        """Refuse a floor that would often make devices refuse to unmask."""
        floor, bits = self._floor, self.parameters.correctness_bits
        chance = refused(self.threat, floor.size, floor.least)
        if floor.floor > 1 and chance > 2.0**-bits:
            raise UsageError(
                f"for {floor.floor} honest survivors, {floor.least} of a cohort of {floor.size} "
                f"devices must survive, as {floor.colluding} may collude: devices would refuse a "
                f"round with a probability of up to {chance:.2g}, which is above 2^-{bits}: raise "
                "alpha (and --degree, if it is given), or lower --min-cohort, --gamma or --dropout"
            )

    @property
    def colluding_in_sum(self) -> int:
        return self._floor.colluding

    @property
    def more_colluding(self) -> float:
        return self._floor.exceeded

    @property
    def survivors_in_sum(self) -> int:
        """Minimum survivors of any cohort, except with 2 to the minus correctness bits."""
        return fewest_survivors(
            self.threat, self.cohort_size, 2.0**-self.parameters.correctness_bits
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"cohort_size": self.cohort_size}

    def promises(self) -> list[Promise]:
        return [*super().promises(), self._floor]

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> InCohorts:
        size = cohort_size(devices, options.alpha)
        return InCohorts(size, ring_degree(options.degree, devices, size), options.alpha)

    def sizes(self) -> dict[Method, float]:
        run = self.summed_in.bits / 8 * self.inclusion * self.parameters.dim
        # The bitmap of the survivors around a device follows the request.
        request = super().sizes()[SecAggServer.send_unmask] + -(-(2 * self.cohort_size - 1) // 8)
        upload: dict[Method, float] = {SecAggDevice.send_masked_input: run}
        return super().sizes() | upload | {SecAggServer.send_unmask: request}

    def pair_masks(
        self, round_index: int, own: tuple[int, int], others: list[tuple[int, int, bytes]]
    ) -> Sums:
        """Return the signed sum of the pairwise masks that a device adds to its run.

        `own` is the device's id and position; `others` have id, position and the common secret.
        """
        (id, position), segments = own, self.segments
        run = self.summed_in.zeros(segments.length(position))
        parts = [
            (peer, secret, id if first else peer, run[start:stop])
            for peer, place, secret in others
            for first, start, stop in segments.common(position, place)
        ]
        # If a pair has two runs in common, each run has its own key.
        contexts = [
            self.pair_contexts(round_index, id, [peer], f"additive mask of the run of {leader}")[0]
            for peer, _, leader, _ in parts
        ]
        mask_keys = keys.derive_each([secret for _, secret, *_ in parts], contexts)
        sums, signs = [part for *_, part in parts], [pair_sign(id, peer) for peer, *_ in parts]
        self.summed_in.add_each(sums, mask_keys, signs)
        return run
