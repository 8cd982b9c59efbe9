"""Who shares keys and masks with whom: everybody with everybody, or neighbours on a ring.

`Complete` is SecAgg's (Bonawitz et al. 2017): every device is linked with every other. `Ring` is
SecAgg+'s (Bell et al., CCS 2020): all N devices are put on a ring in an order drawn after the last
key was advertised, and each is linked with the k nearest, k / 2 on either side (a Harary graph). A
device then works O(k), and so the server sends it its neighbours' keys alone. Those that advertised
no keys have a place as well: they are devices that dropped out, and so degree and threshold, which
were chosen for N devices, are right for whoever is there.

The order follows from the keys *and a nonce* of the server's, so that no device can try keys until
the order suits it.

A device's *holders* hold the shares of its secrets: its neighbours and itself, of those that
advertised keys. They are listed in the same order by the device and the server, which is the order
of shares in messages.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap, the first bit of a
byte being its most significant):

========  =================================  ===================================================
topology  list of keys                       unmasking request
========  =================================  ===================================================
Complete  bits of U1 (N), then two keys      bits of U3 (N), bits of U2 without U3 (N)
          (32 bytes each) of every member
Ring      nonce (16 bytes), u32 position,    u32 size of U3, bits of U3, bits of U2 without U3,
          bits of U1 (slots), then u32 id    both over the slots
          and two keys of every neighbour
          in U1 by slot
========  =================================  ===================================================

The request for secrets of pairs is one such bitmap, and so is the list of expelled devices, behind
their number (u32) on a ring. The slots of a device at position p are the
positions p - k/2 to p + k/2, its own among them; with a degree of N - 1, all positions, beginning
at p - N // 2.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import parse_vector
from hpcfl.algorithms.aggregation.promises import Outcome, Promise
from hpcfl.algorithms.aggregation.reconstruction import Shares
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Ids, Pattern, Payload
from hpcfl.crypto import keys
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.sampling import permutation
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.privacy.ring import (
    REDUNDANT,
    RingParameters,
    best_threshold,
    choose,
    failures,
    log2,
)
from hpcfl.privacy.threat import SPARE, Threat

Flags = NDArray[np.bool_]

NONCE_BYTES = 16
ADVERTISED_BYTES = 2 * keys.KEY_BYTES
NEIGHBOUR = np.dtype([("id", "<u4"), ("keys", "u1", ADVERTISED_BYTES)])


@dataclass(frozen=True)
class Neighbourhood:
    """What a device knows of those it is linked with.

    Attributes
    ----------
    own : int
        The device's id.
    holders : list of int
        Ids of the holders of its shares, its own included.
    numbers : tuple of int
        The holders' numbers in its secret sharing.
    advertised : bytes
        The two public keys of every holder, end to end.
    position : int
        The device's place on the ring; 0 where there is no ring.
    nonce : bytes
        What the order of the ring follows from besides the keys.
    """

    own: int
    holders: list[int]
    numbers: tuple[int, ...]
    advertised: bytes
    position: int = 0
    nonce: bytes = field(default=b"", repr=False)

    def transport_key(self, index: int) -> bytes:
        """Return the key under which shares travel to or from a holder."""
        start = ADVERTISED_BYTES * index
        return self.advertised[start : start + keys.KEY_BYTES]

    def mask_key(self, index: int) -> bytes:
        """Return the key with which masks are agreed with a holder."""
        start = ADVERTISED_BYTES * index + keys.KEY_BYTES
        return self.advertised[start : start + keys.KEY_BYTES]

    def check_keys(self) -> None:
        """Refuse keys with which nothing can be agreed, as errors of their owners.

        A key may be listed twice. Whoever advertises another device's can use it for nothing, and
        what a third one agrees on with the two differs: ids go into what is derived from a secret.

        Raises
        ------
        MessageError
        """
        size = ADVERTISED_BYTES
        for k, id in enumerate(self.holders):
            check_advertised(self.advertised[size * k : size * (k + 1)], id)


@dataclass(frozen=True)
class Request:
    """Whose secrets a device is asked for, of those that it is linked with.

    Attributes
    ----------
    survivors, dropped : list of int
        Whose private-mask seeds, and whose mask keys.
    total : int
        How many survivors there are, linked with this device or not.
    """

    survivors: list[int]
    dropped: list[int]
    total: int


class Links(ABC):
    """The server's side: who is linked with whom in one round.

    Sets of devices are ndarrays of bool, shape (N,).

    Attributes
    ----------
    threshold : int
        Number of holders needed to reconstruct a secret.
    """

    threshold: int

    @abstractmethod
    def key_list(self, receiver: int | None) -> Payload | None:
        """Return the message with the keys for one device; for all, where it is broadcast."""

    @abstractmethod
    def request(self, receiver: int | None, survived: Flags, dropped: Flags) -> Payload | None:
        """Return the unmasking request to one device; to all, where it is broadcast."""

    @abstractmethod
    def bits(self, receiver: int | None, chosen: Flags) -> Payload | None:
        """Return a bitmap of some devices, as one device reads it; all, where it is broadcast."""

    @abstractmethod
    def expelled(self, receiver: int | None, chosen: Flags) -> Payload | None:
        """Return the list of expelled devices to one device; to all, where it is broadcast."""

    @abstractmethod
    def neighbours(self, id: int, among: Flags) -> list[int]:
        """Return those of `among` that a device is linked with, in increasing order."""

    @abstractmethod
    def asked_of(self, holder: int, owners: Flags) -> Ids:
        """Return those of `owners` whose shares a holder has, in the order of its reply."""

    @abstractmethod
    def collect(self, shares: Mapping[int, Elements], owners: Flags, width: int) -> Shares:
        """Return the shares of the owners' secrets.

        Parameters
        ----------
        shares : mapping of int to ndarray of uint32, shape (owners asked of, width)
            What every holder that replied sent.
        owners : ndarray of bool, shape (N,)
            Whose secrets are wanted.
        width : int
            Number of limbs of a secret.
        """

    def combine(self, shares: Mapping[int, Elements], owners: Flags, width: int) -> Elements:
        """Return the owners' secrets, in increasing order of their ids, unchecked.

        Takes what `collect` takes.

        Returns
        -------
        ndarray of uint32, shape (owners, width)

        Raises
        ------
        BelowThresholdError
            If fewer holders of an owner replied than its threshold says.
        """
        return self.collect(shares, owners, width).combine(self.threshold)


class Topology(ABC):
    """Who can be linked with whom, as all parties know beforehand.

    Attributes
    ----------
    pattern : Pattern
        How the server's lists and requests travel.
    degree : int
        Number of a device's neighbours, if all devices advertise keys.
    threshold : int
        Number of holders needed to reconstruct a secret.
    """

    pattern: Pattern
    degree: int
    threshold: int

    @abstractmethod
    def promise(self, parameters: Parameters) -> Promise:
        """Return what the topology protects, and how surely."""

    @abstractmethod
    def link(self, public: Mapping[int, bytes], nonce: bytes, context: bytes) -> Links:
        """Link the devices that advertised keys; `context` names protocol and round."""

    @abstractmethod
    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        """Return what the server's list tells the device `own`, which advertised these keys."""

    @abstractmethod
    def read_request(self, payload: Payload, neighbourhood: Neighbourhood) -> Request:
        """Return the survivors and the dropped devices that a request names."""

    @abstractmethod
    def read_wanted(self, payload: Payload, neighbourhood: Neighbourhood) -> list[int]:
        """Return the devices of which secrets of pairs are asked for."""

    @abstractmethod
    def read_expelled(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], int]:
        """Return which holders were expelled, and how many devices in all."""

    def check_place(self, neighbourhood: Neighbourhood, context: bytes) -> None:  # noqa: B027
        """Refuse a wrong place on a ring, as far as a device can tell; without a ring, nothing.

        Raises
        ------
        RefusedError
        """


class Complete(Topology):
    """Every device is linked with every other."""

    pattern = Pattern.BROADCAST

    def __init__(self, devices: int, threshold: int) -> None:
        self._devices = devices
        self.degree = devices - 1
        self.threshold = threshold

    def promise(self, parameters: Parameters) -> Promise:
        return Unopened(Threat.of(parameters), self.degree, self.threshold)

    def link(self, public: Mapping[int, bytes], nonce: bytes, context: bytes) -> CompleteLinks:
        return CompleteLinks(self._devices, self.threshold, public)

    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        cut = -(-self._devices // 8)
        if payload.size < cut:
            raise from_server("advertise_keys", f"{payload.size} bytes hold no list of devices")
        members = self._ids(payload[:cut], "advertise_keys")
        listed = parse_vector(
            payload[cut:], "u1", ADVERTISED_BYTES * len(members), "advertise_keys", "the server"
        ).tobytes()
        start = ADVERTISED_BYTES * members.index(own) if own in members else 0
        if own not in members or listed[start : start + ADVERTISED_BYTES] != advertised:
            raise from_server("advertise_keys", "this device's own keys are not as it sent them")
        return Neighbourhood(own, members, tuple(members), listed)

    def read_request(self, payload: Payload, neighbourhood: Neighbourhood) -> Request:
        cut = -(-self._devices // 8)
        parse_vector(payload, "u1", 2 * cut, "unmask", "the server")
        survivors = self._ids(payload[:cut], "unmask")
        return Request(survivors, self._ids(payload[cut:], "unmask"), len(survivors))

    def read_wanted(self, payload: Payload, neighbourhood: Neighbourhood) -> list[int]:
        parse_vector(payload, "u1", -(-self._devices // 8), "unmask", "the server")
        return self._ids(payload, "unmask")

    def read_expelled(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], int]:
        parse_vector(payload, "u1", -(-self._devices // 8), "share_keys", "the server")
        expelled = self._ids(payload, "share_keys")
        return [id for id in expelled if id in neighbourhood.holders], len(expelled)

    def _ids(self, bitmap: Payload, phase: str) -> list[int]:
        found = from_bits(bitmap)
        if found and found[-1] >= self._devices:
            raise from_server(phase, f"it names a device beyond the last, {self._devices - 1}")
        return found


class CompleteLinks(Links):
    """Everybody who advertised keys, linked with everybody else."""

    def __init__(self, devices: int, threshold: int, public: Mapping[int, bytes]) -> None:
        self._devices = devices
        self.threshold = threshold
        self._public = public

    def key_list(self, receiver: int | None) -> Payload:
        members = sorted(self._public)
        listed = b"".join(self._public[id] for id in members)
        advertised = to_flags(members, self._devices)
        return np.concatenate([np.packbits(advertised), np.frombuffer(listed, np.uint8)])

    def request(self, receiver: int | None, survived: Flags, dropped: Flags) -> Payload:
        return np.concatenate([np.packbits(survived), np.packbits(dropped)])

    def bits(self, receiver: int | None, chosen: Flags) -> Payload:
        return np.packbits(chosen)

    def expelled(self, receiver: int | None, chosen: Flags) -> Payload:
        return np.packbits(chosen)

    def neighbours(self, id: int, among: Flags) -> list[int]:
        return [other for other in np.flatnonzero(among).tolist() if other != id]

    def asked_of(self, holder: int, owners: Flags) -> Ids:
        return np.flatnonzero(owners)

    def collect(self, shares: Mapping[int, Elements], owners: Flags, width: int) -> Shares:
        holders = np.array(sorted(shares), np.int64)
        ids = np.flatnonzero(owners)
        shape = (ids.size, holders.size)
        values = np.stack([shares[id] for id in holders.tolist()]).transpose(1, 0, 2)
        everybody = np.broadcast_to(holders, shape)
        received = np.ones(shape, np.bool_)
        holding = len(self._public)
        return Shares(ids, everybody, holders, received, values, holding).without_absent()


class Ring(Topology):
    """Every device is linked with its k nearest on a ring."""

    pattern = Pattern.SCATTER

    def __init__(self, devices: int, degree: int, threshold: int) -> None:
        if degree % 2 and degree < devices - 1:
            raise ValueError(f"the degree of a ring is even, not {degree}")
        self.devices = devices
        self.degree = min(degree, devices - 1)
        self.threshold = threshold

    def promise(self, parameters: Parameters) -> Promise:
        return Linked(
            Threat.of(parameters), self.degree, self.threshold, 2.0**-parameters.security_bits
        )

    def link(self, public: Mapping[int, bytes], nonce: bytes, context: bytes) -> RingLinks:
        return RingLinks(self, public, nonce, context)

    @property
    def slots(self) -> int:
        """Number of a device's slots."""
        return self.degree + 1

    @property
    def middle(self) -> int:
        """A device's own slot."""
        return self.slots // 2

    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        phase, start = "advertise_keys", NONCE_BYTES + 4
        bits = payload[start : start + -(-self.slots // 8)]
        listed_from = start + -(-self.slots // 8)
        if payload.size < listed_from:
            raise from_server(phase, f"{payload.size} bytes hold no place on a ring")
        position = int(payload[NONCE_BYTES:start].view("<u4")[0])
        if position >= self.devices:
            raise from_server(phase, f"there is no position {position} of {self.devices}")
        slots = from_bits(bits)
        if self.middle not in slots or slots[-1] >= self.slots:
            raise from_server(phase, "its slots are not those of this device")
        listed = parse_vector(
            payload[listed_from:],
            "u1",
            NEIGHBOUR.itemsize * (len(slots) - 1),
            phase,
            "the server",
        ).view(NEIGHBOUR)
        holders = listed["id"].tolist()
        if own in holders or len({*holders}) != len(holders):
            raise from_server(phase, "a neighbour is listed twice")
        if max(holders, default=0) >= self.devices:
            raise from_server(phase, f"it names a device beyond the last, {self.devices - 1}")
        place = slots.index(self.middle)
        holders.insert(place, own)
        both = np.insert(listed["keys"], place, np.frombuffer(advertised, np.uint8), axis=0)
        nonce = payload[:NONCE_BYTES].tobytes()
        return Neighbourhood(own, holders, tuple(slots), both.tobytes(), position, nonce)

    def read_request(self, payload: Payload, neighbourhood: Neighbourhood) -> Request:
        cut = -(-self.slots // 8)
        parse_vector(payload, "u1", 4 + 2 * cut, "unmask", "the server")
        survivors = self._named(payload[4 : 4 + cut], neighbourhood)
        dropped = self._named(payload[4 + cut :], neighbourhood)
        total = int(payload[:4].view("<u4")[0])
        if not len(survivors) <= total <= self.devices:
            raise from_server("unmask", f"{total} survivors of {self.devices} cannot be")
        return Request(survivors, dropped, total)

    def read_wanted(self, payload: Payload, neighbourhood: Neighbourhood) -> list[int]:
        parse_vector(payload, "u1", -(-self.slots // 8), "unmask", "the server")
        return self._named(payload, neighbourhood)

    def read_expelled(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], int]:
        parse_vector(payload, "u1", 4 + -(-self.slots // 8), "share_keys", "the server")
        expelled = self._named(payload[4:], neighbourhood, "share_keys")
        total = int(payload[:4].view("<u4")[0])
        if not len(expelled) <= total <= self.devices:
            raise from_server("share_keys", f"{total} expelled devices of {self.devices} cannot be")
        return expelled, total

    def _named(
        self, bitmap: Payload, neighbourhood: Neighbourhood, phase: str = "unmask"
    ) -> list[int]:
        """Return the holders at some slots."""
        holder_at = dict(zip(neighbourhood.numbers, neighbourhood.holders, strict=True))
        slots = from_bits(bitmap)
        if not {*slots} <= {*holder_at}:
            raise from_server(phase, "it names a slot that nobody is in")
        return [holder_at[slot] for slot in slots]

    def check_place(self, neighbourhood: Neighbourhood, context: bytes) -> None:
        # Who knows only its neighbours must trust the server, honest-but-curious, with the order.
        if self.degree < self.devices - 1:
            return
        known, size = neighbourhood, ADVERTISED_BYTES
        public = {
            id: known.advertised[size * k : size * (k + 1)] for k, id in enumerate(known.holders)
        }
        order = ring_order(self.devices, public, known.nonce, context)
        first = known.position - self.middle
        if known.holders != [int(order[(first + slot) % self.devices]) for slot in known.numbers]:
            raise RefusedError(
                f"device {known.own} refuses its place: the ring does not follow from the keys"
            )


class RingLinks(Links):
    """All devices on a ring, of which those that advertised keys are linked.

    Attributes
    ----------
    order : ndarray of int64, shape (N,)
        The ids around the ring.
    position : ndarray of int64, shape (N,)
        Each device's place.
    """

    def __init__(
        self, topology: Ring, public: Mapping[int, bytes], nonce: bytes, context: bytes
    ) -> None:
        self.threshold = topology.threshold
        self.nonce = nonce
        self._public = public
        self._advertised = to_flags(public, topology.devices)
        self._slots, self._middle = topology.slots, topology.middle
        self.order = ring_order(topology.devices, public, nonce, context)
        self.position = np.empty_like(self.order)
        self.position[self.order] = np.arange(self.order.size)

    def _around(self, id: int) -> Ids:
        """Return who is in a device's slots."""
        places = self.position[id] - self._middle + np.arange(self._slots)
        return self.order[places % self.order.size]

    def holders(self, id: int) -> Ids:
        """Return a device's holders by slot."""
        around = self._around(id)
        return around[self._advertised[around]]

    def key_list(self, receiver: int | None) -> Payload | None:
        if receiver is None or receiver not in self._public:
            return None
        neighbours = [id for id in self.holders(receiver).tolist() if id != receiver]
        listed = np.empty(len(neighbours), NEIGHBOUR)
        listed["id"] = neighbours
        raw = b"".join(self._public[id] for id in neighbours)
        listed["keys"] = np.frombuffer(raw, np.uint8).reshape(-1, ADVERTISED_BYTES)
        place = np.array([self.position[receiver]], "<u4").view(np.uint8)
        bits = np.packbits(self._advertised[self._around(receiver)])
        return np.concatenate(
            [np.frombuffer(self.nonce, np.uint8), place, bits, listed.view(np.uint8)]
        )

    def request(self, receiver: int | None, survived: Flags, dropped: Flags) -> Payload | None:
        bits = self.bits(receiver, survived), self.bits(receiver, dropped)
        if bits[0] is None or bits[1] is None:
            return None
        total = np.array([np.count_nonzero(survived)], "<u4").view(np.uint8)
        return np.concatenate([total, *bits])

    def bits(self, receiver: int | None, chosen: Flags) -> Payload | None:
        if receiver is None or receiver not in self._public:
            return None
        return np.packbits(chosen[self._around(receiver)])

    def expelled(self, receiver: int | None, chosen: Flags) -> Payload | None:
        bits = self.bits(receiver, chosen)
        if bits is None:
            return None
        total = np.array([np.count_nonzero(chosen)], "<u4").view(np.uint8)
        return np.concatenate([total, bits])

    def neighbours(self, id: int, among: Flags) -> list[int]:
        holders = self.holders(id)
        return sorted(other for other in holders[among[holders]].tolist() if other != id)

    def asked_of(self, holder: int, owners: Flags) -> Ids:
        holders = self.holders(holder)
        return holders[owners[holders]]

    def collect(self, shares: Mapping[int, Elements], owners: Flags, width: int) -> Shares:
        ids = np.flatnonzero(owners)
        row = np.cumsum(owners) - 1
        holders = np.zeros((ids.size, self._slots), np.int64)
        received = np.zeros((ids.size, self._slots), np.bool_)
        table = np.zeros((ids.size, self._slots, width), np.uint32)
        for holder, sent in shares.items():
            asked = self.asked_of(holder, owners)
            away = self.position[holder] - self.position[asked]
            slots = (away + self._middle) % self.order.size
            holders[row[asked], slots] = holder
            received[row[asked], slots] = True
            table[row[asked], slots] = sent
        numbers = np.arange(self._slots)
        return Shares(ids, holders, numbers, received, table, self._slots).without_absent()


def ring_order(
    devices: int, public: Mapping[int, bytes], nonce: bytes, context: bytes
) -> NDArray[np.int64]:
    """Return the ids around the ring, which follow from nonce and keys: int64, shape (N,)."""
    digest = hashlib.sha256(context + nonce)
    for id in sorted(public):
        digest.update(id.to_bytes(4, "little") + public[id])
    return permutation(digest.digest(), devices)


def ring_of(parameters: Parameters, least: int = 2) -> Ring:
    """Return the ring with the degree that is asked for, or the smallest that is safe.

    Raises
    ------
    UsageError
        If the degree that is asked for is below `least`.
    """
    threat = Threat.of(parameters)
    if parameters.degree is None:
        chosen = choose(threat, parameters.security_bits, parameters.correctness_bits, least)
        return Ring(parameters.devices, chosen.degree, chosen.threshold)
    degree = min(parameters.degree, parameters.devices - 1)
    if degree < min(least, parameters.devices - 1):
        raise UsageError(
            f"with {degree} neighbours each, not all devices of a cohort are linked, and "
            f"--min-cohort promises that they are: give --degree {least}, or leave it out"
        )
    return Ring(parameters.devices, degree, best_threshold(threat, degree))


@dataclass(frozen=True)
class Unopened(Promise):
    """Nobody but t devices together can open a secret, where all are linked with all."""

    threat: Threat
    degree: int
    threshold: int

    @property
    def claim(self) -> str:
        exceeded = f" but for a probability of {log2(self.worst)}" if self.worst else ""
        colluding = f": not {self.threat} that collude{exceeded}" if self.threat.colluding else ""
        return (
            f"every device shares keys and masks with {_others(self.degree)}; {self.threshold} "
            f"devices reconstruct a secret, and fewer learn nothing of it{colluding}. "
            f"{self._cost_of_a_false_one}"
        )

    @property
    def _cost_of_a_false_one(self) -> str:
        """What a device that shares or answers falsely can do to others, in a sentence."""
        false, enough = "A device that shares or answers falsely", self.threshold + REDUNDANT
        left = self.threat.devices - self.threat.dropped
        if enough > self.threat.devices:
            return f"{false} can end the round: {enough} answers are needed to tell which it is"
        if enough > left:
            return (
                f"{false} costs itself alone if {enough} devices answer, and can end the round "
                f"where dropouts leave fewer, down to {left}"
            )
        return f"{false} costs itself alone while at least {enough} devices answer"

    @property
    def worst(self) -> float:
        return failures(self.threat, self.degree, self.threshold).revealed


def _others(count: int) -> str:
    return "the other" if count == 1 else f"the {count} others"


@dataclass(frozen=True)
class Linked(Promise):
    """Secrets stay closed and the honest survivors linked, where all have but a few neighbours.

    Attributes
    ----------
    threat : Threat
        Who colludes, and how many are to drop out.
    degree, threshold : int
        The ring's.
    accepted : float
        Probability of a failure that is accepted.
    """

    threat: Threat
    degree: int
    threshold: int
    accepted: float

    @property
    def claim(self) -> str:
        planned = self._failures(self.threat.dropped)
        return (
            f"every device shares keys and masks with {self.degree} neighbours; {self.threshold} "
            f"of them reconstruct a secret. If {self.threat} collude and up to "
            f"{self.threat.dropped} others drop out, wherever chance puts them on the ring, and "
            "one more is expelled, a secret is revealed with a probability of at most "
            f"{log2(planned.revealed)}, the honest are not all linked with {log2(planned.split)}, "
            f"and some device has fewer than {self.threshold + REDUNDANT} neighbours left, so that "
            f"one that answers falsely can end the round, with {log2(planned.stuck)}"
        )

    def failure(self, outcome: Outcome) -> float:
        gone = outcome.devices - outcome.survivors - outcome.expelled
        found = self._failures(max(0, gone), outcome.expelled)
        return min(1.0, found.revealed + found.split)

    @property
    def worst(self) -> float:
        planned = self._failures(self.threat.dropped)
        return min(1.0, max(self.accepted, planned.revealed + planned.split))

    def broken(self, outcome: Outcome) -> str | None:
        chance, limit = self.failure(outcome), self.worst
        if chance <= limit:
            return None
        expelled = f", {outcome.expelled} of them expelled" if outcome.expelled else ""
        return (
            f"{outcome.devices - outcome.survivors} of {outcome.devices} devices have dropped out"
            f"{expelled}: with {self.degree} neighbours each, the honest ones among the others are "
            f"not all linked with a probability of up to {log2(chance)}, and {log2(limit)} was "
            "promised"
        )

    def _failures(self, dropped: int, expelled: int = SPARE) -> RingParameters:
        return _failures(self.threat, self.degree, self.threshold, dropped, expelled)


@lru_cache(maxsize=256)
def _failures(
    threat: Threat, degree: int, threshold: int, dropped: int, expelled: int
) -> RingParameters:
    return failures(threat.with_dropped(dropped), degree, threshold, expelled)


def from_server(phase: str, reason: str) -> MessageError:
    """Return the error for a message of the server's."""
    return MessageError(phase, "the server", reason)


def check_advertised(advertised: bytes, id: int) -> None:
    """Refuse the two public keys of a device with which nothing can be agreed.

    Raises
    ------
    MessageError
    """
    try:
        for start in range(0, len(advertised), keys.KEY_BYTES):
            keys.check_public(advertised[start : start + keys.KEY_BYTES])
    except ValueError as error:
        raise MessageError("advertise_keys", f"device {id}", str(error)) from None


def to_flags(ids: Iterable[int], devices: int) -> Flags:
    """Return a set of ids below `devices` as ndarray of bool, shape (devices,)."""
    flags = np.zeros(devices, np.bool_)
    flags[list(ids)] = True
    return flags


def from_bits(bitmap: Payload) -> list[int]:
    """Return the numbers of the bits that are set."""
    return np.flatnonzero(np.unpackbits(bitmap)).tolist()
