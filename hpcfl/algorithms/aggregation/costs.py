"""The terms in which a protocol declares what a round takes: bytes and operations, by phase.

A protocol enters them in its method ``count``. Bytes follow from the layouts of its messages and
are exact where those are fixed; of what chance decides (how many coordinates are selected, which
neighbours drop out) it is the expectation. Operations are those of
:mod:`hpcfl.costmodel.kernels`, which measures what one costs on a machine.

The devices that drop out do so before the upload, exactly floor(theta N) of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import ENVELOPE_BYTES
from hpcfl.crypto.groups import BLOCK_WORDS

Operations = dict[str, float]
# Coordinates, eight bytes each, that fit the cache.
CACHED = 1 << 17
# Probabilities that a pair selects a coordinate for which drawing is measured: rarer ones are
# decided by fewer bits of a word.
GAP_RATES = {1e-2: "1e2", 1e-3: "1e3", 1e-4: "1e4", 1e-5: "1e5"}


@dataclass
class PhaseCosts:
    """What a phase takes.

    Attributes
    ----------
    name : str
        The phase.
    up, down : float
        Bytes that a device sends and receives which is in the phase, envelopes included.
    messages_up, messages_down : float
        Messages of such a device.
    routed : float
        Those of the bytes that such a device sends, and receives, in rows of a route.
    senders, receivers : int
        Devices that send, and that receive.
    device : dict of str to float
        Operations of a device that is in it to its end.
    server : dict of str to float
        Operations of the server.
    around : dict of str to float
        Operations that take time and are nobody's work.
    scattered : bool
        Whether the server sends every device a message of its own.
    """

    name: str
    up: float = 0.0
    down: float = 0.0
    messages_up: float = 0.0
    messages_down: float = 0.0
    routed: float = 0.0
    senders: int = 0
    receivers: int = 0
    device: Operations = field(default_factory=dict)
    server: Operations = field(default_factory=dict)
    around: Operations = field(default_factory=dict)
    scattered: bool = False

    def sends(self, size: float, senders: int, messages: float = 1) -> None:
        """Let so many devices send messages, of so many bytes together without envelopes."""
        self.up += size + ENVELOPE_BYTES * messages
        self.messages_up += messages
        self.senders = senders

    def routes(self, size: float, devices: int, rows: float) -> None:
        """Let so many devices send each other rows, of so many bytes together of each of them."""
        self.sends(size, devices, rows)
        self.receives(size, devices, rows)
        self.routed += size + ENVELOPE_BYTES * rows

    def receives(self, size: float, receivers: int, messages: float = 1) -> None:
        """Let so many devices receive messages, of so many bytes together without envelopes."""
        self.down += size + ENVELOPE_BYTES * messages
        self.messages_down += messages
        self.receivers = receivers


Phases = Mapping[str, PhaseCosts]


@dataclass(frozen=True)
class Crowd:
    """How many are in a round.

    Attributes
    ----------
    devices, dropped : int
        Number N of devices, and of those of them that drop out.
    degree : int
        Neighbours of a device.
    """

    devices: int
    dropped: int
    degree: int

    @classmethod
    def of(cls, parameters: Parameters, degree: int | None = None) -> Crowd:
        """Return who is in a round; all are neighbours by default."""
        dropped = math.floor(Fraction(repr(parameters.dropout)) * parameters.devices)
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


def along(length: float, names: Sequence[str], times: float = 1.0) -> Operations:
    """Return operations on all elements of a vector, of which a part may not fit the cache."""
    return {key: n for name in names for key, n in at(name, times * length, length).items()}


def at(name: str, count: float, length: float) -> Operations:
    """Return operations on some elements of a vector of that length."""
    far = max(0.0, 1 - CACHED / length) if length else 0.0
    return {name: count * (1 - far), f"{name}_far": count * far}


def gaps(probability: float, count: float, pairs: float) -> Operations:
    """Return gaps drawn for a pair, each as so much of the two probabilities it lies between."""
    known = sorted(GAP_RATES)
    chosen = min(max(probability, known[0]), known[-1])
    above = next(rate for rate in known if rate >= chosen)
    below = next(rate for rate in reversed(known) if rate <= chosen)
    part = math.log(chosen / below) / math.log(above / below) if above > below else 1.0
    found: Operations = {}
    add(found, at(f"gap_{GAP_RATES[below]}", count * (1 - part), pairs * count))
    add(found, at(f"gap_{GAP_RATES[above]}", count * part, pairs * count))
    return found


def masks(keys: float, words: int) -> Operations:
    """Return what it takes to add so many masks to a vector (`Group.add_masks`)."""
    blocks = math.ceil(words / BLOCK_WORDS)
    return {"mask_key": keys, "mask_block": keys * blocks, "mask_word": keys * words}


def masked_upload(phase: PhaseCosts, dim: int, senders: int, keys: float) -> None:
    """Enter whole vectors under so many masks, sent and added up."""
    phase.sends(4 * dim, senders)
    add(
        phase.device,
        {
            "message": 1,
            **along(dim, ["quantised", "reduced"]),
            **masks(keys, dim),
            "sealed_byte": 4 * dim,
        },
    )
    add(phase.server, {"upload": senders, "summed": senders * dim})
