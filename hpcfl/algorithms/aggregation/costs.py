"""What a round takes, in bytes and operations, by phase.

Bytes follow from the sizes of its messages (`AggregationProtocol.sizes`) and from its steps, which
say who sends them to whom (`exchanged`); of what chance decides (how many coordinates are selected,
which neighbours drop out) they are the expectation. Operations are entered by the module `work`, or
by a method ``count`` of a protocol of one's own. They are those of `OPERATIONS`;
:mod:`hpcfl.costmodel.kernels` measures what one costs on a machine. What takes a device, or the
server for each device, the same time in every round is not counted: it is measured as a whole
(:mod:`hpcfl.costmodel.overheads`).

The devices that drop out do so before the upload, exactly floor(theta N) of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcfl.algorithms.aggregation.base import AggregationProtocol, ModelSender
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import ENVELOPE_BYTES, Pattern, Role
from hpcfl.crypto.groups import STREAMS_AT_ONCE, Group, Ring
from hpcfl.errors import UsageError

Operations = dict[str, float]
# What rounds are made of, and the kind of work that each operation is.
OPERATIONS = {
    "message": "vectors",  # an envelope put on, taken off and entered
    "agreement": "keys",  # an X25519 secret agreed on with a peer, or a key pair made
    "derivation": "keys",  # a key derived from a secret (HKDF)
    "share_product": "sharing",  # a product in F_q while sharing or combining
    "share": "sharing",  # a peer's key checked; a share for it sealed, opened and returned
    "settled": "sharing",  # a holder's answer compared with those of the dealer's other holders
    "ring": "sharing",  # the server's look-ups for a device whose neighbours are on a ring
    "keystream": "masks",  # a keystream opened
    "mask_key": "masks",  # one of many that are opened in a row, each for a mask
    "common_run": "masks",  # what two devices of a cohort both send looked up, for their mask
    "mask_word": "masks",  # a word of it, an element of F_q, added to a vector
    "masked": "masks",  # an element of a vector in F_q reduced, once all its masks are added
    "gap": "selection",  # a gap between selected coordinates drawn
    "scattered": "selection",  # an element taken from, or added to, some coordinate of a vector
    "scattered_far": "selection",  # the same where the vector does not fit the cache
    "converted": "vectors",  # a coordinate clipped, scaled and rounded, or reduced, or decoded
    "converted_far": "vectors",  # the same where the vector does not fit the cache
    "decoded": "vectors",  # an element of the sum decoded
    "summed": "vectors",  # an element of a received vector checked and added to the sum
    "summed_far": "vectors",  # the same where the vector does not fit the cache
    # In a ring, where elements are words of one, two or four bytes:
    "mask_byte": "masks",  # a byte of keystream added to a vector
    "summed_byte": "vectors",  # a byte of a received vector added to the sum
    "summed_byte_far": "vectors",  # the same where the vector does not fit the cache
    "butterfly": "vectors",  # an addition, or subtraction, of two elements of a rotated vector
    "packed_byte": "vectors",  # a byte of elements that are packed in their bits
    "unpacked_byte": "vectors",  # the same of those that are unpacked
    # Where masks are coded:
    "product": "coding",  # a product in F_q while pieces are encoded, or decoded
    "coded": "coding",  # an element put together from such products
    "coded_far": "coding",  # the same where what is encoded does not fit the cache
    "recovered": "coding",  # what recovering a sum takes however long it is
    "answered": "coding",  # an element of a sum of pieces received, checked against the others
    "interpolated": "coding",  # an entry of Lagrange's matrix computed, to recover masks
    "encrypted": "encryption",  # a block of values encrypted by CKKS
    "ciphertext": "encryption",  # a ciphertext received and added
    "decrypted": "encryption",  # a block of values decrypted
    "key_read": "encryption",  # the key that decrypts made ready
    "sealed": "coding",  # a row for a peer sealed, or opened
    "sealed_byte": "coding",  # a byte of it
    "sealed_byte_far": "coding",  # the same where the rows do not fit the cache
    "noise": "noise",  # a device's noise drawn for an integer
}
# Those on the values of uploads, which the ranks of a server share.
ON_VALUES = frozenset(
    (
        *("mask_word", "masked", "mask_byte", "unpacked_byte"),
        *("summed", "summed_far", "summed_byte", "summed_byte_far"),
    )
)
# Coordinates, eight bytes each, that fit the cache.
CACHED = 1 << 17


@dataclass
class PhaseCosts:
    """What a phase takes."""

    name: str
    # Bytes of a device that sends and receives in the phase, envelopes included; its messages.
    up: float = 0.0
    down: float = 0.0
    messages_up: float = 0.0
    messages_down: float = 0.0
    routed: float = 0.0  # those of the bytes that it sends, and receives, in rows of a route
    senders: int = 0
    receivers: int = 0
    device: Operations = field(default_factory=dict)  # of one that is in it to its end
    server: Operations = field(default_factory=dict)
    # Of each helper, for whom devices and server wait: its work, and its bytes.
    helper: Operations = field(default_factory=dict)
    helper_up: float = 0.0
    helper_down: float = 0.0
    # What members of a committee do and move besides what devices do; how many they are.
    member: Operations = field(default_factory=dict)
    member_up: float = 0.0
    member_down: float = 0.0
    members: int = 0
    around: Operations = field(default_factory=dict)  # take time and are nobody's work
    scattered: bool = False  # whether the server sends every device a message of its own

    def sends(self, size: float, senders: int, messages: float = 1) -> None:
        """Let so many devices send messages, of so many bytes together without envelopes."""
        self.up += size + ENVELOPE_BYTES * messages
        self.messages_up += messages
        self.senders = senders

    def receives(self, size: float, receivers: int, messages: float = 1) -> None:
        """Let so many devices receive messages, of so many bytes together without envelopes."""
        self.down += size + ENVELOPE_BYTES * messages
        self.messages_down += messages
        self.receivers = receivers

    def routes(self, size: float, devices: int, rows: float) -> None:
        """Let so many devices send each other rows, of so many bytes together of each of them."""
        self.sends(size, devices, rows)
        self.receives(size, devices, rows)
        self.routed += size + ENVELOPE_BYTES * rows


Phases = Mapping[str, PhaseCosts]


def exchanged(protocol: AggregationProtocol) -> Phases:
    """Return the phases of a round with the bytes that move in each.

    UsageError if the protocol does not say the size of a message.
    """
    phases = {name: PhaseCosts(name) for name in protocol.phases()}
    sizes = {ModelSender.send_model: 4.0 * protocol.parameters.dim} | protocol.sizes()
    plan, members = protocol.parameters, int(protocol.settings().get("committee", 0))
    before = True
    for step in protocol.steps:
        # Devices drop out before the phase of the upload.
        before = before and step.phase != protocol.upload_phase()
        there = plan.devices - (0 if before else plan.planned_dropouts)
        if step.pattern is Pattern.LOCAL or step.wants is not None:
            continue
        if step.send not in sizes:
            raise UsageError(
                f"there is no cost model of {protocol.name!r}: its method sizes does not say how "
                f"long messages of the phase {step.phase} are; measure it with hpcfl bench"
            )
        phase, size = phases[step.phase], sizes[step.send]
        message, gathers = size + ENVELOPE_BYTES, step.pattern is Pattern.GATHER
        if step.pattern is Pattern.ROUTE and step.to is Role.COMMITTEE:
            phase.members = members
            phase.sends(size * members, there, members)
            phase.routed += phase.up
            # A member keeps its own share.
            phase.member_down += message * (there - 1)
            phase.member_up -= message
        elif step.pattern is Pattern.ROUTE:
            rows = protocol.rows_of_device
            phase.routes(size * rows, there, rows)
        elif step.role is Role.DEVICE and gathers:
            phase.sends(size, there)
        elif step.role is Role.DEVICE:
            phase.scattered |= step.pattern is Pattern.SCATTER
            phase.receives(size, there)
        else:
            of = "helper" if step.role is Role.HELPER else "member"
            way = f"{of}_{'up' if gathers else 'down'}"
            setattr(phase, way, getattr(phase, way) + message)
            phase.members = members if of == "member" else 0
    return phases


@dataclass(frozen=True)
class Crowd:
    """How many are in a round."""

    devices: int  # N
    dropped: int  # of them
    degree: int  # neighbours of a device

    @classmethod
    def of(cls, parameters: Parameters, degree: int | None = None) -> Crowd:
        """Return who is in a round; all are neighbours by default."""
        dropped = parameters.planned_dropouts
        known = parameters.devices - 1 if degree is None else degree
        return cls(parameters.devices, dropped, known)

    @property
    def survivors(self) -> int:
        """Number of devices whose vectors are in the sum."""
        return self.devices - self.dropped

    def neighbours_among(self, count: int) -> float:
        """Return how many neighbours a device expects among `count` other devices."""
        return self.degree * count / max(1, self.devices - 1)


def add(operations: Operations, more: Mapping[str, float], times: float = 1.0) -> None:
    """Add operations, so many times, to others, in place."""
    for name, count in more.items():
        operations[name] = operations.get(name, 0.0) + times * count


def beyond_cache(length: float) -> float:
    """Return the part of a vector's elements that does not fit the cache."""
    return max(0.0, 1 - CACHED / length) if length else 0.0


def at(name: str, count: float, length: float) -> Operations:
    """Return operations on some elements of a vector of that length."""
    far = beyond_cache(length)
    return {name: count * (1 - far), f"{name}_far": count * far}


def converted(length: float, times: float = 1.0) -> Operations:
    """Return so many conversions of every element of a vector: clipped, rounded, reduced, ..."""
    return at("converted", times * length, length)


def mask_words(group: Group, count: float) -> Operations:
    """Return so many elements of keystream added to elements of a group."""
    if isinstance(group, Ring):
        return {"mask_byte": count * group.dtype.itemsize}
    return {"mask_word": count}


def summed(group: Group | None, length: float, times: float = 1.0) -> Operations:
    """Return so many received vectors added up; of real numbers without a group."""
    if isinstance(group, Ring):
        return at("summed_byte", times * length * group.dtype.itemsize, length)
    return at("summed", times * length, length)


def reduced(group: Group, length: float) -> Operations:
    """Return the sum of received vectors made elements, which in a ring words of it are."""
    return {} if isinstance(group, Ring) else converted(length)


def packed(group: Group, count: float) -> Operations:
    """Return so many elements packed for the wire."""
    return {} if group.whole_words else {"packed_byte": count * group.bits / 8}


def unpacked(group: Group, count: float) -> Operations:
    """Return so many received elements unpacked."""
    return {} if group.whole_words else {"unpacked_byte": count * group.bits / 8}


def streamed(group: Group, count: float, length: float) -> Operations:
    """Return elements of keystream added to some coordinates of a sum (`Group.add_mask`).

    Where that does not fit the cache, going through it costs as much as adding a vector up.
    """
    far = count * beyond_cache(length)
    if isinstance(group, Ring):
        return mask_words(group, count) | {"summed_byte_far": far * group.dtype.itemsize}
    return mask_words(group, count) | {"summed_far": far}


def masks(group: Group, keys: float, words: int) -> Operations:
    """Return what it takes to add so many masks to a vector (`Group.add_masks`)."""
    work = {"mask_key": keys} | mask_words(group, keys * words)
    if not isinstance(group, Ring):
        work["masked"] = words * math.ceil(keys / STREAMS_AT_ONCE)
    return work


def coded(group: Group, rows: int, terms: int, columns: int) -> Operations:
    """Return what a product of matrices over a field takes (`crypto.matrices.product`).

    To cut an element of the right one into halves takes a seventh of what it takes to put one of
    the product together. Elements no longer than a half are not cut: that is a quarter of the
    products, and half of the rest.
    """
    short = group.bits <= 16
    elements = (rows + terms / 7) * columns / (2 if short else 1)
    products = rows * terms * columns / (4 if short else 1)
    return {"product": products} | at("coded", elements, elements / 2)


def sealed_rows(rows: float, size: int) -> Operations:
    """Return so many rows, of so many bytes each, sealed or opened."""
    return {"sealed": rows} | at("sealed_byte", rows * size, rows * size / 8)


def sent(words: float) -> Operations:
    """Return what a vector's way into its message takes: a copy, half of what adding it up is."""
    return {"message": 1} | at("summed", words / 2, words)


def received(group: Group | None, vectors: float, words: float) -> Operations:
    """Return what the server's vectors take, of so many words each, to be checked and added up.

    An upload follows work of another kind, which leaves nothing in the caches: as much as two
    messages.
    """
    return {"message": 2 * vectors} | summed(group, words, vectors)


def masked_upload(phase: PhaseCosts, group: Group, dim: int, senders: int, keys: float) -> None:
    """Enter the work on whole vectors under so many masks, sent and added up."""
    # Words are made where their envelope has room; what is packed is copied behind it.
    copied = 0 if group.whole_words else group.wire_bytes(dim) / 4
    for work in (sent(copied), converted(dim, 2), masks(group, keys, dim), packed(group, dim)):
        add(phase.device, work)
    add(phase.server, received(group, senders, dim))
    add(phase.server, unpacked(group, dim), senders)
