"""Which devices share keys and masks: all pairs of devices, or neighbours on a ring.

In SecAgg (`Topology`; Bonawitz et al. 2017) every device is linked with every other. In SecAgg+
(`RingGraph`; Bell et al., CCS 2020) all N devices are put on a ring in an order drawn after the
last key was advertised, and each is linked with the k nearest, k / 2 on either side (a Harary
graph). A device then does O(k) work, and the server sends it only the keys of its neighbours.
Devices that advertised no keys also have a place and count as dropped, so the degree and threshold
that were chosen for N devices stay valid.

The order follows from the keys *and a nonce* of the server, so no device can try keys until the
order suits it. The *holders* of a device have the shares of its secrets: they are the device itself
and its neighbours that advertised keys, in the same order on both sides.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap, the first bit of a
byte being its most significant):

========  =================================  ===================================================
links     list of keys                       unmasking request
========  =================================  ===================================================
complete  bits of U1 (N), then two keys      bits of U3 (N), bits of U2 without U3 (N)
          (32 bytes each) of every member
ring      nonce (16 bytes), u32 position,    u32 size of U3, bits of U3, bits of U2 without U3,
          bits of U1 (slots), then u32 id    both over the slots
          and two keys of every neighbour
          in U1 by slot
========  =================================  ===================================================

The request for secrets of pairs is one such bitmap. So is the list of expelled devices; on a ring
their number (u32) precedes it. The slots of a device at position p are the positions p - k/2 to
p + k/2, its own included; with a degree of N - 1, all positions, beginning at p - N // 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.graphpromises import Linked, Unopened
from hpcfl.algorithms.aggregation.messages import (
    SERVER,
    Flags,
    check_public_keys,
    from_bits,
    from_server,
    parse_vector,
    read_bits,
    split_bits,
    to_flags,
)
from hpcfl.algorithms.aggregation.promises import Promise
from hpcfl.algorithms.aggregation.reconstruction import Shares
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Ids, Pattern, Payload
from hpcfl.crypto import keys
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.sampling import permutation
from hpcfl.errors import RefusedError, UsageError
from hpcfl.privacy.ring import best_threshold, choose
from hpcfl.privacy.threat import Threat
from hpcfl.values import dataclass, field, replace

NONCE_BYTES = 16
ADVERTISED_BYTES = 2 * keys.KEY_BYTES
# The use of a device's first public key, and of its second: places from the end, because a device
# that has used the first ones keeps only the second.
SHARES, MASKS = -2, -1
NEIGHBOUR = np.dtype([("id", "<u4"), ("keys", "u1", ADVERTISED_BYTES)])


@dataclass(frozen=True)
class Neighbourhood:
    """What a device knows about its linked devices."""

    own: int  # the device's id
    holders: tuple[int, ...]  # ids of the holders of its shares, its own included
    numbers: tuple[int, ...]  # the holders' numbers in its secret sharing
    # The public keys of all holders, shape (holders, uses, 32). Broadcast keys are a view of the
    # message, which all devices of a process share.
    advertised: NDArray[np.uint8]
    position: int = 0  # the device's place on the ring; 0 where there is no ring
    nonce: bytes = field(default=b"", repr=False)  # determines the order, with the keys

    def advertised_by(self, index: int) -> bytes:
        """Return a holder's two keys."""
        return self.advertised[index].tobytes()

    def public_keys(self, use: int, places: Sequence[int]) -> list[bytes]:
        """Return the keys of the holders at some places for one use, `SHARES` or `MASKS`."""
        return keys.cut(self.advertised[places, use].tobytes())

    def without_shares_keys(self) -> Neighbourhood:
        """Return the same without the keys for one use, `SHARES`."""
        return replace(self, advertised=self.advertised[:, MASKS:])

    def check_keys(self) -> None:
        """Refuse unusable keys, as errors of their owners.

        A key may be listed twice. A device that advertises another's key cannot use it, and a third
        device derives different keys with the two, because the derivation includes ids.
        """
        check_public_keys(self.advertised.tobytes(), self.holders)


@dataclass(frozen=True)
class Request:
    """The linked devices whose secrets a device is asked for."""

    survivors: Sequence[int]  # asked for: shares of their private-mask seeds
    dropped: Sequence[int]  # asked for: shares of their mask keys
    total: int  # number of survivors, linked with this device or not


class Links:
    """The server's record of the links of one round; in this class, all pairs are linked.

    Sets of devices that advertised keys are ndarrays of bool, shape (N,). A message is broadcast to
    all devices or, on a ring, made for one receiver; it is None if the receiver gets none.
    """

    def __init__(self, devices: int, threshold: int, public: Mapping[int, bytes]) -> None:
        self.threshold = threshold  # number of holders needed to reconstruct a secret
        self._public = public
        self._advertised = to_flags(public, devices)

    def holders(self, id: int) -> Ids:
        """Return a device's holders by slot."""
        return np.flatnonzero(self._advertised)

    def key_list(self, receiver: int | None) -> Payload | None:
        """Return the message with the list of keys."""
        listed = b"".join(self._public[id] for id in sorted(self._public))
        return np.concatenate([np.packbits(self._advertised), np.frombuffer(listed, np.uint8)])

    def bits(self, receiver: int | None, *sets: Flags, counted: bool = False) -> Payload | None:
        """Return bitmaps of sets; if `counted`, on a ring, the size of the first precedes them."""
        return np.concatenate([np.packbits(one) for one in sets])

    def neighbours(self, id: int, among: Flags) -> list[int]:
        """Return the devices of `among` that a device is linked with, in increasing order."""
        return sorted(other for other in self.asked_of(id, among).tolist() if other != id)

    def asked_of(self, holder: int, owners: Flags) -> Ids:
        """Return the `owners` whose shares a holder has, in the order of its reply."""
        holders = self.holders(holder)
        return holders[owners[holders]]

    def collect(self, shares: Mapping[int, Elements], owners: Flags, width: int) -> Shares:
        """Return the shares of the owners' secrets, of `width` limbs each.

        `shares` are the replies by holder: uint32 of shape (owners asked for, width).
        """
        holders = np.array(sorted(shares), np.int64)
        ids = np.flatnonzero(owners)
        shape = (ids.size, holders.size)
        values = np.stack([shares[id] for id in holders.tolist()]).transpose(1, 0, 2)
        everybody, received = np.broadcast_to(holders, shape), np.ones(shape, np.bool_)
        holding = len(self._public)
        return Shares(ids, everybody, holders, received, values, holding).without_absent()


class Topology:
    """The possible links, which all parties know beforehand; in this class, all pairs of devices.

    `degree` is the number of a device's neighbours if all devices advertise keys, `threshold` the
    number of holders needed to reconstruct a secret, and `slots` the number of bits of a bitmap.
    """

    pattern: ClassVar[Pattern] = Pattern.BROADCAST  # how the server's lists and requests travel
    count_bytes: ClassVar[int] = 0  # size of the number of devices before a list

    def __init__(self, devices: int, degree: int, threshold: int) -> None:
        self.devices, self.threshold = devices, threshold
        self.degree = min(degree, devices - 1)
        self.slots = self.degree + 1

    def promise(self, parameters: Parameters) -> Promise:
        """Return the promise that secrets stay protected, with its failure probability."""
        return Unopened(Threat.of(parameters), self.degree, self.threshold)

    def link(self, public: Mapping[int, bytes], nonce: bytes, context: bytes) -> Links:
        """Link the devices that advertised keys; `context` names protocol and round."""
        return Links(self.devices, self.threshold, public)

    @property
    def list_bytes(self) -> int:
        """Size of a list of keys in bytes, if all devices advertise keys."""
        return -(-self.devices // 8) + ADVERTISED_BYTES * self.devices

    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        """Return the neighbourhood of device `own`, which sent `advertised`, from a key list."""
        phase = "advertise_keys"
        named, rest = split_bits(payload, self.devices, phase)
        listed = parse_vector(rest, "u1", ADVERTISED_BYTES * len(named), phase)
        members = _tuple_of(payload[: -(-self.devices // 8)].tobytes())
        found = Neighbourhood(own, members, members, listed.reshape(-1, 2, keys.KEY_BYTES))
        if own not in members or found.advertised_by(members.index(own)) != advertised:
            raise from_server(phase, "this device's own keys are not as it sent them")
        return found

    def _named(self, bitmap: Payload, neighbourhood: Neighbourhood, phase: str) -> Sequence[int]:
        """Return the devices whose bits are set."""
        return read_bits(bitmap, self.devices, phase, SERVER)

    def read_request(self, payload: Payload, neighbourhood: Neighbourhood) -> Request:
        """Return the survivors and the dropped devices named in a request."""
        (survivors, dropped), total = self._read(payload, neighbourhood, "unmask", 2, "survivors")
        return Request(survivors, dropped, total)

    def read_wanted(self, payload: Payload, neighbourhood: Neighbourhood) -> Sequence[int]:
        """Return the devices whose secrets of pairs are asked for."""
        return self._read(payload, neighbourhood, "unmask", 1)[0][0]

    def read_expelled(
        self, payload: Payload, neighbourhood: Neighbourhood
    ) -> tuple[list[int], int]:
        """Return the expelled holders, and the number of all expelled devices."""
        (listed,), total = self._read(payload, neighbourhood, "share_keys", 1, "expelled devices")
        return [id for id in listed if id in neighbourhood.holders], total

    def _read(
        self, payload: Payload, known: Neighbourhood, phase: str, lists: int, counted: str = ""
    ) -> tuple[list[Sequence[int]], int]:
        """Return the lists of devices in a message, and the total size of the first set."""
        head, size = self.count_bytes if counted else 0, -(-self.slots // 8)
        parse_vector(payload, "u1", head + lists * size, phase)
        bitmaps = payload[head:].reshape(lists, size)
        named = [self._named(bitmap, known, phase) for bitmap in bitmaps]
        total = int(payload[:head].view("<u4")[0]) if head else len(named[0])
        if not len(named[0]) <= total <= self.devices:
            raise from_server(phase, f"{total} {counted} of {self.devices} cannot be")
        return named, total

    def check_place(self, neighbourhood: Neighbourhood, context: bytes) -> None:
        """Refuse a wrong place on a ring, as far as a device can tell; no check without a ring."""


@lru_cache(maxsize=4)
def _tuple_of(bitmap: bytes) -> tuple[int, ...]:
    """Return the devices whose bits are set; equal bitmaps share one cached tuple."""
    return tuple(from_bits(np.frombuffer(bitmap, np.uint8)))


class RingGraph(Topology):
    """Every device is linked with its k nearest devices on a ring."""

    pattern = Pattern.SCATTER
    count_bytes = 4

    def __init__(self, devices: int, degree: int, threshold: int) -> None:
        super().__init__(devices, degree, threshold)
        self.middle = self.slots // 2  # a device's own slot

    def promise(self, parameters: Parameters) -> Promise:
        return Linked(
            Threat.of(parameters), self.degree, self.threshold, 2.0**-parameters.security_bits
        )

    def link(self, public: Mapping[int, bytes], nonce: bytes, context: bytes) -> RingLinks:
        return RingLinks(self, public, nonce, context)

    @property
    def list_bytes(self) -> int:
        return NONCE_BYTES + 4 + -(-self.slots // 8) + NEIGHBOUR.itemsize * self.degree

    def read_key_list(self, payload: Payload, own: int, advertised: bytes) -> Neighbourhood:
        phase, start = "advertise_keys", NONCE_BYTES + 4
        listed_from = start + -(-self.slots // 8)
        if payload.size < listed_from:
            raise from_server(phase, f"{payload.size} bytes hold no place on a ring")
        position = int(payload[NONCE_BYTES:start].view("<u4")[0])
        if position >= self.devices:
            raise from_server(phase, f"there is no position {position} of {self.devices}")
        slots = from_bits(payload[start:listed_from])
        if self.middle not in slots or slots[-1] >= self.slots:
            raise from_server(phase, "its slots are not those of this device")
        size = NEIGHBOUR.itemsize * (len(slots) - 1)
        neighbours = parse_vector(payload[listed_from:], "u1", size, phase).view(NEIGHBOUR)
        holders = neighbours["id"].tolist()
        if own in holders or len({*holders}) != len(holders):
            raise from_server(phase, "a neighbour is listed twice")
        if max(holders, default=0) >= self.devices:
            raise from_server(phase, f"it names a device beyond the last, {self.devices - 1}")
        place = slots.index(self.middle)
        holders.insert(place, own)
        both = np.insert(neighbours["keys"], place, np.frombuffer(advertised, np.uint8), axis=0)
        nonce = payload[:NONCE_BYTES].tobytes()
        pairs = both.reshape(-1, 2, keys.KEY_BYTES)
        return Neighbourhood(own, tuple(holders), tuple(slots), pairs, position, nonce)

    def _named(self, bitmap: Payload, neighbourhood: Neighbourhood, phase: str) -> list[int]:
        holder_at = dict(zip(neighbourhood.numbers, neighbourhood.holders, strict=True))
        slots = from_bits(bitmap)
        if not {*slots} <= {*holder_at}:
            raise from_server(phase, "it names a slot that nobody is in")
        return [holder_at[slot] for slot in slots]

    def check_place(self, neighbourhood: Neighbourhood, context: bytes) -> None:
        # A device that knows only its neighbours must trust the honest-but-curious server's order.
        if self.degree < self.devices - 1:
            return
        known = neighbourhood
        public = {id: known.advertised_by(k) for k, id in enumerate(known.holders)}
        order = ring_order(self.devices, public, known.nonce, context)
        first = known.position - self.middle
        holders = [int(order[(first + slot) % self.devices]) for slot in known.numbers]
        if [*known.holders] != holders:
            raise RefusedError(
                f"device {known.own} refuses its place: the ring does not follow from the keys"
            )


class RingLinks(Links):
    """All devices on a ring; the ones that advertised keys are linked.

    `order` holds the ids around the ring, `position` each device's place; int64, shape (N,).
    """

    def __init__(
        self, topology: RingGraph, public: Mapping[int, bytes], nonce: bytes, context: bytes
    ) -> None:
        super().__init__(topology.devices, topology.threshold, public)
        self.nonce = nonce
        self._slots, self._middle = topology.slots, topology.middle
        self.order = ring_order(topology.devices, public, nonce, context)
        self.position = np.empty_like(self.order)
        self.position[self.order] = np.arange(self.order.size)

    def _around(self, id: int) -> Ids:
        """Return the ids of the devices in a device's slots."""
        places = self.position[id] - self._middle + np.arange(self._slots)
        return self.order[places % self.order.size]

    def holders(self, id: int) -> Ids:
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
        around = np.packbits(self._advertised[self._around(receiver)])
        return np.concatenate(
            [np.frombuffer(self.nonce, np.uint8), place, around, listed.view(np.uint8)]
        )

    def bits(self, receiver: int | None, *sets: Flags, counted: bool = False) -> Payload | None:
        if receiver is None or receiver not in self._public:
            return None
        around = self._around(receiver)
        total = np.array([np.count_nonzero(sets[0])] if counted else [], "<u4").view(np.uint8)
        return np.concatenate([total, *(np.packbits(one[around]) for one in sets)])

    def collect(self, shares: Mapping[int, Elements], owners: Flags, width: int) -> Shares:
        ids, row = np.flatnonzero(owners), np.cumsum(owners) - 1
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
    """Return the ids around the ring, drawn from nonce and keys: int64, shape (N,)."""
    digest = hashlib.sha256(context + nonce)
    for id in sorted(public):
        digest.update(id.to_bytes(4, "little") + public[id])
    return permutation(digest.digest(), devices)


def ring_of(parameters: Parameters, least: int = 2) -> RingGraph:
    """Return the ring with the requested degree, or with the smallest safe degree.

    Raise UsageError if the requested degree is below `least`.
    """
    threat = Threat.of(parameters)
    if parameters.degree is None:
        chosen = choose(threat, parameters.security_bits, parameters.correctness_bits, least)
        return RingGraph(parameters.devices, chosen.degree, chosen.threshold)
    degree = min(parameters.degree, parameters.devices - 1)
    if degree < min(least, parameters.devices - 1):
        raise UsageError(
            f"with {degree} neighbours each, not all devices of a cohort are linked, and "
            f"--min-cohort promises that they are: give --degree {least}, or leave it out"
        )
    return RingGraph(parameters.devices, degree, best_threshold(threat, degree))
