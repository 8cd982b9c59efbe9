"""Who shares keys and masks with whom: everybody with everybody, or neighbours on a ring.

`Complete` is SecAgg's (Bonawitz et al. 2017): every device is linked with every other. `Ring` is
SecAgg+'s (Bell et al., CCS 2020): devices are put on a ring in an order drawn from the advertised
keys, and each is linked with the k nearest, k / 2 on either side (a Harary graph). A device then
works O(k), and so the server sends it its neighbours' keys alone.

A device's *holders* hold the shares of its secrets: its neighbours and itself. They are listed in
the same order by the device and the server, which is the order of shares in messages.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap, the first bit of a
byte being its most significant):

========  ===============================  ========================================================
topology  list of keys                     unmasking request
========  ===============================  ========================================================
Complete  bits of U1 (N), then two keys    bits of U3 (N), bits of U2 without U3 (N)
          (32 bytes each) of every member
Ring      u32 ring size, u32 position,     bits of U3, bits of U2 without U3, both over the slots
          then u32 id and two keys of
          every neighbour by slot
========  ===============================  ========================================================

The slots of a device at position p of a ring of n are the positions p - k/2 to p + k/2, its own
among them; on a ring of at most k + 1 devices, all positions, beginning at p - n // 2.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import parse_vector
from hpcfl.algorithms.aggregation.reconstruction import Shares
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Ids, Pattern, Payload
from hpcfl.crypto import keys
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.sampling import permutation
from hpcfl.errors import MessageError, RefusedError
from hpcfl.privacy.population import Population, count_of
from hpcfl.privacy.ring import best_threshold, choose, failures, log2

Flags = NDArray[np.bool_]

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
    position, ring : int
        The device's place on the ring and the ring's size; 0 where there is no ring.
    """

    own: int
    holders: list[int]
    numbers: tuple[int, ...]
    advertised: bytes
    position: int = 0
    ring: int = 0

    def transport_key(self, index: int) -> bytes:
        """Return the key under which shares travel to or from a holder."""
        start = ADVERTISED_BYTES * index
        return self.advertised[start : start + keys.KEY_BYTES]

    def mask_key(self, index: int) -> bytes:
        """Return the key with which masks are agreed with a holder."""
        start = ADVERTISED_BYTES * index + keys.KEY_BYTES
        return self.advertised[start : start + keys.KEY_BYTES]

    def check_keys(self) -> None:
        """Refuse a key that is listed twice: two devices' masks would be one.

        So are keys with which nothing can be agreed; those are errors of their owners.

        Raises
        ------
        MessageError
        """
        size = keys.KEY_BYTES
        for k, id in enumerate(self.holders):
            check_advertised(self.advertised[2 * size * k : 2 * size * (k + 1)], id)
        listed = {self.advertised[k : k + size] for k in range(0, len(self.advertised), size)}
        if len(listed) != 2 * len(self.holders):
            raise from_server("advertise_keys", "a public key is listed twice")


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
    def promise(self, parameters: Parameters) -> str:
        """Return in a sentence what the topology protects, and how surely."""

    @abstractmethod
    def link(self, public: Mapping[int, bytes], context: bytes) -> Links:
        """Link the devices that advertised keys; `context` names protocol and round."""

    @abstractmethod
    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        """Return what the server's list tells the device `own`, which advertised these keys."""

    @abstractmethod
    def read_request(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], list[int]]:
        """Return the survivors and the dropped devices that a request names."""

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

    def promise(self, parameters: Parameters) -> str:
        return (
            f"every device shares keys and masks with the {self.degree} others; "
            f"{self.threshold} devices reconstruct a secret, fewer learn nothing of it"
        )

    def link(self, public: Mapping[int, bytes], context: bytes) -> CompleteLinks:
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

    def read_request(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], list[int]]:
        cut = -(-self._devices // 8)
        parse_vector(payload, "u1", 2 * cut, "unmask", "the server")
        return self._ids(payload[:cut], "unmask"), self._ids(payload[cut:], "unmask")

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
        came = np.ones(shape, np.bool_)
        holding = len(self._public)
        return Shares(ids, everybody, holders, came, values, holding).without_absent()


class Ring(Topology):
    """Every device is linked with its k nearest on a ring."""

    pattern = Pattern.SCATTER

    def __init__(self, devices: int, degree: int, threshold: int) -> None:
        if degree % 2 and degree < devices - 1:
            raise ValueError(f"the degree of a ring is even, not {degree}")
        self._devices = devices
        self.degree = min(degree, devices - 1)
        self.threshold = threshold

    def promise(self, parameters: Parameters) -> str:
        population = population_of(parameters)
        found = failures(population, self.degree, self.threshold)
        return (
            f"every device shares keys and masks with {self.degree} neighbours; {self.threshold} "
            f"of them reconstruct a secret. If {population.colluding} devices collude and "
            f"{population.dropped} drop out once they are on the ring, a secret is revealed with a "
            f"probability of at most {log2(found.revealed)}, the honest are not all linked with "
            f"{log2(found.split)}, a round cannot end with {log2(found.stuck)}"
        )

    def link(self, public: Mapping[int, bytes], context: bytes) -> RingLinks:
        return RingLinks(self, public, context)

    def slots(self, ring: int) -> tuple[int, int]:
        """Return how many slots a device has on a ring of this size, and which is its own."""
        return (ring, ring // 2) if ring - 1 <= self.degree else (self.degree + 1, self.degree // 2)

    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        if payload.size < 8:
            raise from_server("advertise_keys", f"{payload.size} bytes hold no place on a ring")
        ring, position = payload[:8].view("<u4").tolist()
        if position >= ring:
            raise from_server("advertise_keys", f"there is no position {position} of {ring}")
        if ring > self._devices:
            raise from_server(
                "advertise_keys", f"{self._devices} devices do not make a ring of {ring}"
            )
        count, middle = self.slots(ring)
        listed = parse_vector(
            payload[8:], "u1", NEIGHBOUR.itemsize * (count - 1), "advertise_keys", "the server"
        ).view(NEIGHBOUR)
        holders = listed["id"].tolist()
        if own in holders or len({*holders}) != len(holders):
            raise from_server("advertise_keys", "a neighbour is listed twice")
        if max(holders, default=0) >= self._devices:
            raise from_server(
                "advertise_keys", f"it names a device beyond the last, {self._devices - 1}"
            )
        holders.insert(middle, own)
        both = np.insert(listed["keys"], middle, np.frombuffer(advertised, np.uint8), axis=0)
        return Neighbourhood(own, holders, tuple(range(count)), both.tobytes(), position, ring)

    def read_request(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], list[int]]:
        holders = neighbourhood.holders
        cut = -(-len(holders) // 8)
        parse_vector(payload, "u1", 2 * cut, "unmask", "the server")
        named = from_bits(payload[:cut]), from_bits(payload[cut:])
        if any(slots and slots[-1] >= len(holders) for slots in named):
            raise from_server("unmask", "it names a slot beyond the last")
        return [holders[slot] for slot in named[0]], [holders[slot] for slot in named[1]]

    def check_place(self, neighbourhood: Neighbourhood, context: bytes) -> None:
        # Who knows only its neighbours must trust the server, honest-but-curious, with the order.
        known, ring = neighbourhood, neighbourhood.ring
        if len(known.holders) < ring:
            return
        size = ADVERTISED_BYTES
        public = {
            id: known.advertised[size * k : size * (k + 1)] for k, id in enumerate(known.holders)
        }
        order = ring_order(public, context)
        if known.holders != [
            int(order[(known.position - ring // 2 + slot) % ring]) for slot in range(ring)
        ]:
            raise RefusedError(
                f"device {known.own} refuses its place: the ring does not follow from the keys"
            )


class RingLinks(Links):
    """Those who advertised keys, on a ring."""

    def __init__(self, topology: Ring, public: Mapping[int, bytes], context: bytes) -> None:
        self.threshold = topology.threshold
        self._public = public
        self.order = ring_order(public, context)
        self.size = self.order.size
        self._slots, self._middle = topology.slots(self.size)
        # By id; nobody asks for the position of a device that is not on the ring.
        self.position = np.zeros(int(self.order.max()) + 1, np.int64)
        self.position[self.order] = np.arange(self.size)

    def holders(self, id: int) -> Ids:
        """Return a device's holders by slot."""
        places = self.position[id] - self._middle + np.arange(self._slots)
        return self.order[places % self.size]

    def key_list(self, receiver: int | None) -> Payload | None:
        if receiver is None or receiver not in self._public:
            return None
        neighbours = [id for id in self.holders(receiver).tolist() if id != receiver]
        listed = np.empty(len(neighbours), NEIGHBOUR)
        listed["id"] = neighbours
        raw = b"".join(self._public[id] for id in neighbours)
        listed["keys"] = np.frombuffer(raw, np.uint8).reshape(-1, ADVERTISED_BYTES)
        head = np.array([self.size, self.position[receiver]], "<u4")
        return np.concatenate([head.view(np.uint8), listed.view(np.uint8)])

    def request(self, receiver: int | None, survived: Flags, dropped: Flags) -> Payload | None:
        if receiver is None or receiver not in self._public:
            return None
        holders = self.holders(receiver)
        return np.concatenate([np.packbits(survived[holders]), np.packbits(dropped[holders])])

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
        came = np.zeros((ids.size, self._slots), np.bool_)
        table = np.zeros((ids.size, self._slots, width), np.uint32)
        for holder, sent in shares.items():
            asked = self.asked_of(holder, owners)
            slots = (self.position[holder] - self.position[asked] + self._middle) % self.size
            holders[row[asked], slots] = holder
            came[row[asked], slots] = True
            table[row[asked], slots] = sent
        numbers = np.arange(self._slots)
        return Shares(ids, holders, numbers, came, table, self._slots).without_absent()


def ring_order(public: Mapping[int, bytes], context: bytes) -> NDArray[np.int64]:
    """Return the ids around the ring, which follow from everybody's keys: int64, shape (n,)."""
    members = sorted(public)
    digest = hashlib.sha256(context)
    for id in members:
        digest.update(id.to_bytes(4, "little") + public[id])
    return np.array(members, np.int64)[permutation(digest.digest(), len(members))]


def ring_of(parameters: Parameters) -> Ring:
    """Return the ring with the degree that is asked for, or the smallest that is safe."""
    if parameters.degree is None:
        chosen = choose(
            population_of(parameters), parameters.security_bits, parameters.correctness_bits
        )
        return Ring(parameters.devices, chosen.degree, chosen.threshold)
    degree = min(parameters.degree, parameters.devices - 1)
    return Ring(parameters.devices, degree, best_threshold(population_of(parameters), degree))


def population_of(parameters: Parameters) -> Population:
    """Return who is to be reckoned with: devices, colluding ones, and dropouts."""
    colluding = count_of(Fraction(repr(parameters.gamma)), parameters.devices)
    return Population(parameters.devices, colluding, parameters.dropout)


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
