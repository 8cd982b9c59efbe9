"""Rounds in one process in which one message on its way is changed, and what may come of them."""

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.envelope import VERSION
from hpcfl.comm.phases import Pattern, Step
from hpcfl.errors import HpcflError
from hpcfl.rounds.enrolment import enrol

sys.path.insert(0, str(Path(__file__).parents[1]))

import protocol_rounds
from protocol_rounds import Header, Played

ENVELOPE, HELPERS = 16, 2**31
Q = 2**32 - 5

# Between them these run the code of all protocols that share secrets, or have helpers.
CASES = {
    "secagg": ("secagg", {}),
    "secagg-graph": ("secagg-graph", {"degree": 4}),
    "sparse": ("sparse", {"alpha": 0.6, "locations": "gaps"}),
    "cohort": ("cohort", {"alpha": 0.6, "degree": 8}),
    "assisted": ("assisted", {"helpers": 3}),
    "pine": ("pine", {}),
    "opa": ("opa", {"dropout": 0.1}),
    "flamingo": ("flamingo", {"dropout": 0.1}),
    "sparse-active": ("sparse", {"security": "active", "alpha": 0.6}),
}


# Threshold of shares; the one that a ring of so few devices would choose is all of them.
RING_THRESHOLD = 3
DIM = 12


@lru_cache(maxsize=64)
def protocol(case, devices):
    """Return the protocol of a case, made once; one with an enrolment must join again."""
    name, options = CASES[case]
    security = options.get("security", "passive")
    made = find(name, security)(Parameters(devices, DIM, levels=1000, **options))
    if "degree" in options:
        made.topology.threshold = RING_THRESHOLD
    return made


@dataclass(frozen=True)
class Message:
    """A sealed message as it was sent."""

    step: Step
    sender: int
    sealed: bytes
    enrolment: bool


class OneChanged:
    """Keeps every message of a round and its enrolment, and changes the one of a given number."""

    def __init__(self, target, change):
        self.messages = []
        self.delivered = None
        self.steps = ()
        self.enrolment = False
        self._target, self._change = target, change

    def __call__(self, header, message):
        """Return a message, or the rows of a route that still have their size, as delivered."""
        if message.ndim == 1:
            return self._passed(message)
        fitting = [row for row in map(self._passed, message) if row.size == message.shape[1]]
        return np.array(fitting, np.uint8).reshape(-1, message.shape[1])

    def _passed(self, sealed):
        header = Header.of(sealed)
        if header.version != VERSION or header.reserved:
            return sealed  # the registry of public keys, which does not come from the server
        # Devices that refuse say so in steps of their own; they are of no step of the protocol.
        of_protocol = header.step < len(self.steps)
        step = self.steps[header.step] if of_protocol else Step("refusal", Pattern.LOCAL)
        message = Message(step, header.sender, sealed.tobytes(), self.enrolment)
        self.messages.append(message)
        if len(self.messages) - 1 != self._target or self._change is None:
            return sealed
        self.delivered = self._change(message)
        return np.frombuffer(self.delivered, np.uint8)

    @property
    def target(self):
        """The message that was changed, as it was sent."""
        return self.messages[self._target]


@dataclass
class Outcome:
    """The result of a round, if one began, and why it or its enrolment ended."""

    case: str
    wire: OneChanged
    played: Played | None
    error: HpcflError | None

    @property
    def kind(self):
        """How the round ended: ``exact``, ``own choice``, ``ended`` or ``wrong``."""
        if self.error is not None:
            return "ended"
        if not self.differing().size:
            return "exact"
        return "own choice" if self.chosen else "wrong"

    def differing(self):
        """Return the coordinates at which the sum is not that of the survivors it names."""
        played, total = self.played, np.zeros(DIM, np.int64)
        for id in played.server.survivors:
            where, values = played.devices[id].contribution(played.vectors[id])
            total[where] += values
        return np.flatnonzero(played.server.total != total)

    @property
    def chosen(self):
        """Whether the changed message may make a difference that nobody can notice."""
        message, delivered = self.wire.target, self.wire.delivered
        assert delivered is not None
        if self.case == "assisted" and (
            message.enrolment or message.sender >= HELPERS or message.step.name == "ready"
        ):
            # What helpers answer is taken for their masks, and so is what was agreed on with them,
            # and whose masks a device is told to add.
            return True
        if self.case == "pine":
            # Proofs leave devices no choice, and the helper's sum is taken for that of its shares.
            return message.sender >= HELPERS and message.step.name == "unmask"
        if message.step.phase == "advertise_keys" and "degree" in CASES[self.case][1]:
            # On a ring nobody else sees what a device is told, and no device its own keys: with
            # other keys the masks do not cancel, as if the sender had added what it liked.
            return len(delivered) == len(message.sealed)
        # Elements, and locations, are the sender's own choice: but each at its place alone.
        differing = set(self.differing().tolist())
        return message.step.upload and differing <= self._changed(message.sealed, delivered)

    def _changed(self, before, after):
        """Return the coordinates at which two uploads differ."""
        (of, one), (to, other) = self._values(before), self._values(after)
        return {*of} ^ {*to} | {k for k in {*of} & {*to} if one[of == k] != other[to == k]}

    def _values(self, sealed):
        body = np.frombuffer(sealed[ENVELOPE:], np.uint8)
        used, where = 0, np.arange(DIM)
        if self.case.startswith("sparse"):
            where, used = locations.decode(body, DIM)
        elif self.case == "cohort":
            where = where[self.played.devices[self.wire.target.sender].sent()]
        return where, np.frombuffer(body[used:].tobytes(), "<u4")


def play(case, devices, dropouts=None, target=-1, change=None, index=3):
    """Play a round, and its enrolment if it has one, with one message changed."""
    of, wire = protocol(case, devices), OneChanged(target, change)
    enrolment = of.enrolment(devices, of.helpers)
    if enrolment is not None:
        wire.enrolment, wire.steps = True, enrolment.steps
        transport = protocol_rounds.Wire(devices, wire, of.helpers)
        try:
            enrolled = enrol(of, transport, insecure_seed=1)
        except HpcflError as error:
            return Outcome(case, wire, None, error)
        of.join(enrolled.devices, range(devices), devices)
    wire.enrolment, wire.steps = False, of.steps
    vectors = np.random.default_rng(devices).uniform(-1, 1, (devices, DIM))
    played = protocol_rounds.play(of, vectors, dropouts, index=index, change=wire, raises=False)
    return Outcome(case, wire, played, played.error)


# changes

BOUNDARIES = (0, 1, 2, 4, 5, 12, 255, 256, 2**16, 2**24, 2**31 - 1, 2**31, Q - 1, Q, 2**32 - 1)
KINDS = ("flip", "cut", "extend", "replay", "splice", "envelope", "word", "empty")


def changed(message, kind, x, y, pool):
    """Return a message changed in one of `KINDS` of ways; `x` and `y`, not negative, say how."""
    raw, other = bytearray(message), pool[x % len(pool)]
    place, word = x // 8 % len(raw), 4 * (x % (len(raw) // 4))
    if kind == "flip":
        raw[place] ^= 1 << x % 8
    elif kind == "cut":
        del raw[place:]
    elif kind == "extend":
        raw += bytes(1 + y % 64)
    elif kind == "replay":
        return other
    elif kind == "splice":
        return message[:ENVELOPE] + other[ENVELOPE:]
    elif kind == "envelope":
        return other[:ENVELOPE] + message[ENVELOPE:]
    elif kind == "word":
        raw[word : word + 4] = BOUNDARIES[y % len(BOUNDARIES)].to_bytes(4, "little")
    return bytes(raw)


@lru_cache(maxsize=64)
def honest(case, devices):
    """Return the messages of a round that nothing happens to, and those of it and of another."""
    one, other = play(case, devices), play(case, devices, index=2)
    assert (one.error, other.error) == (None, None)
    assert one.kind == other.kind == "exact"
    pool = [message.sealed for message in (*one.wire.messages, *other.wire.messages)]
    return one.wire.messages, pool


def fuzzed(case, devices, dropouts, target, kind, x, y):
    """Play a round with a message changed, chosen by a number not below 0."""
    messages, pool = honest(case, devices)
    before = play(case, devices, dropouts).wire.messages if dropouts else messages
    return play(
        case,
        devices,
        dropouts,
        target % len(before),
        lambda message: changed(message.sealed, kind, x, y, pool),
    )
