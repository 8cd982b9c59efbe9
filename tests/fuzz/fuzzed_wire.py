"""Rounds in one process in which one message on its way is changed, and what may come of them."""

import copy
import pickle
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.assisted import HelpingMember
from hpcfl.algorithms.aggregation.ckks import CkksServer, KeyHolder
from hpcfl.algorithms.aggregation.ranges import RangeSum
from hpcfl.algorithms.aggregation.sharing import Dealings
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Pattern, Step
from hpcfl.crypto import ckks
from hpcfl.crypto.groups import Adder
from hpcfl.crypto.keys import helper_secrets, insecure_secrets
from hpcfl.errors import BelowThresholdError, HpcflError, MessageError, RefusedError
from hpcfl.rounds.enrolment import NO_ROUND

sys.path.insert(0, str(Path(__file__).parents[1]))

from player import Changing, parties, round_of

ENVELOPE, HELPERS = 16, 2**31
Q = 2**32 - 5
Bytes = NDArray[np.uint8]

CASES = {
    "fedavg": ("fedavg", {}),
    "fedavg-zeros": ("fedavg", {}),
    "secagg": ("secagg", {}),
    "secagg-degree": ("secagg", {"degree": 4}),
    "secagg-graph": ("secagg-graph", {"degree": 4}),
    "secagg-graph-complete": ("secagg-graph", {"degree": 8}),
    "sparse-bitmap": ("sparse", {"alpha": 0.6, "locations": "bitmap"}),
    "sparse-gaps": ("sparse", {"alpha": 0.6, "locations": "gaps"}),
    "sparse-degree": ("sparse", {"alpha": 0.6, "degree": 4}),
    "cohort": ("cohort", {"alpha": 0.6, "degree": 8}),
    "cohort-degree": ("cohort", {"alpha": 0.6, "degree": 4}),
    "common": ("common", {"alpha": 0.6}),
    "assisted": ("assisted", {}),
    "assisted-spare": ("assisted", {"helpers": 3, "helper_dropout": 1}),
    "lightsecagg": ("lightsecagg", {"dropout": 0.1}),
    "committee": ("committee", {"dropout": 0.1}),
    "prf": ("prf", {"dropout": 0.0}),
    "ring20": ("secagg", {"group": "ring20"}),
    "ring32": ("secagg", {"group": "ring32"}),
    "secagg-active": ("secagg", {"security": "active"}),
    "sparse-active": ("sparse", {"security": "active", "alpha": 0.6}),
}
if find_spec("tenseal"):
    CASES["ckks"] = ("ckks", {})
# Those in which devices deal shares of their secrets.
SHARING = [
    case
    for case in CASES
    if not case.startswith(("fedavg", "assisted", "lightsecagg", "committee", "prf", "ckks"))
]
# Those in which helpers know masks.
HELPED = [case for case, (name, _) in CASES.items() if find(name).default_helpers]
# Between them these run the code of all; the others belong to the full tier.
QUICK = (
    *("fedavg", "secagg", "secagg-graph", "sparse-gaps", "cohort", "lightsecagg", "prf"),
    *("assisted", "assisted-spare", "committee", "sparse-active", "ckks"),
)


def each(cases):
    return [pytest.param(case, marks=() if case in QUICK else pytest.mark.full) for case in cases]


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
    receiver: int
    sealed: bytes
    enrolment: bool = False


class Wire(Changing):
    """A loopback that keeps every message and delivers the one of a given number changed."""

    def __init__(self, devices, target=-1, change=None, helpers=0):
        super().__init__(devices, helpers)
        self.messages = []
        self.delivered = None
        self.steps = ()
        self.enrolment = False
        self._target = target
        self._change = change

    def passed(self, sealed):
        raw = sealed.tobytes()
        sender, receiver = np.frombuffer(raw[8:ENVELOPE], "<u4").tolist()
        # Devices that refuse say so in steps of their own; they are of no step of the protocol.
        step = self.steps[raw[1]] if raw[1] < len(self.steps) else Step("refusal", Pattern.LOCAL)
        message = Message(step, sender, receiver, raw, self.enrolment)
        self.messages.append(message)
        if len(self.messages) - 1 != self._target or self._change is None:
            return sealed
        self.delivered = self._change(message)
        return np.frombuffer(self.delivered, np.uint8)

    @property
    def target(self):
        """The message that was changed, as it was sent."""
        return self.messages[self._target]


def fit(row, size):
    """Return a row of this size, cut or with zeros behind it."""
    return np.concatenate([row[:size], np.zeros(max(0, size - row.size), np.uint8)])


@dataclass
class Outcome:
    """The result of a round."""

    case: str
    wire: Wire
    devices: dict[int, Any]
    vectors: NDArray[np.float64]
    server: Any = None
    error: HpcflError | None = None
    refused: dict[int, HpcflError] = field(default_factory=dict)
    dropouts: dict[int, str] = field(default_factory=dict)

    @property
    def kind(self):
        """How the round ended: ``exact``, ``own choice``, ``ended`` or ``wrong``."""
        if self.error is not None:
            return "ended"
        differing = self.differing()
        if not differing.size:
            return "exact"
        allowed = self.allowed()
        if allowed is None or set(differing.tolist()) <= allowed:
            return "own choice"
        return "wrong"

    def differing(self):
        """Return the coordinates at which the sum is not that of the survivors it names."""
        total = np.zeros(DIM, self.server.total.dtype)
        for id in self.server.survivors:
            where, values = self.devices[id].contribution(self.vectors[id])
            total[where] += values
        return np.flatnonzero(np.abs(self.server.total - total) > 1e-9)

    def allowed(self):
        """Return where the changed message may make a difference that nobody can notice.

        None for anywhere, an empty set for nowhere.
        """
        message, delivered = self.wire.target, self.wire.delivered
        assert delivered is not None
        of_helpers = message.enrolment or message.sender >= HELPERS or message.step.name == "ready"
        if self.case.startswith("assisted") and of_helpers:
            # What helpers answer is taken for their masks, and so is what was agreed on with them,
            # and whose masks a device is told to add.
            return None
        if self.case == "ckks" and (message.step.upload or self._alone(message)):
            # What changes a ciphertext changes all values; what one device tells nobody checks.
            return None
        if message.step.upload:
            # A group element, and a location, is the sender's own choice.
            return self._changed_coordinates(message, delivered)
        if message.step.phase == "advertise_keys" and "degree" in CASES[self.case][1]:
            # On a ring nobody else sees what a device is told, and no device its own keys: with
            # other keys the masks do not cancel, as if the sender had added what it liked.
            return None if len(delivered) == len(message.sealed) else set()
        if message.step.name == "pairs" and message.step.pattern is Pattern.GATHER:
            # What two devices have in common, one of which is gone, is known to the other alone.
            return None
        return set()

    def _alone(self, message):
        """Return whether a message is from the only device that told the sum."""
        told = [one for one in self.wire.messages if one.step == message.step]
        return message.step.name == "decrypt" and message.sender >= 0 and len(told) == 1

    def _changed_coordinates(self, message, delivered):
        """Return which coordinates two uploads of a device differ in."""
        before, after = self._values(message, message.sealed), self._values(message, delivered)
        if {*before} != {*after}:
            return {*before, *after}
        return {k for k in before if before[k] != after[k]}

    def _values(self, message, sealed):
        body = np.frombuffer(sealed[ENVELOPE:], np.uint8)
        used, where = 0, np.arange(DIM)
        short = self.case.startswith("fedavg") and len(body) < 4 * DIM
        if self.case.startswith("sparse") or short:
            where, used = locations.decode(body, DIM)
        elif self.case.startswith(("cohort", "common")):
            where = where[self.devices[message.sender].sent()]
        bits = 20 if self.case == "ring20" else 32
        number = int.from_bytes(body[used:].tobytes(), "little")
        values = [number >> bits * k & (2**bits - 1) for k in range(len(where))]
        return {int(k): value for k, value in zip(where, values, strict=True)}


def vectors_of(case, devices):
    """Return a vector for every device; in one case most of each is zero."""
    generator = np.random.default_rng(devices)
    vectors = generator.uniform(-1, 1, (devices, DIM))
    if case == "fedavg-zeros":
        vectors[generator.random(vectors.shape) < 0.8] = 0
    return vectors


def play(case, devices, dropouts=None, target=-1, change=None, index=3, stands=None, wire=None):
    """Play a round, and its enrolment if it has one, with one message changed.

    `stands` takes what every party was before it received each of its messages.
    """
    of = protocol(case, devices)
    dropouts = dropouts or {}
    wire = wire or Wire(devices, target, change, of.helpers)
    outcome = Outcome(case, wire, {}, vectors_of(case, devices), dropouts=dropouts)
    try:
        enrolment = type(of).enrolment(devices, of.helpers)
        helping = range(devices, devices + of.helpers)
        if enrolment is not None:
            members = {
                id: enrolment.device(id, insecure_secrets(1, NO_ROUND, id)) for id in range(devices)
            }
            helpers = {
                id: enrolment.helper(id - devices, helper_secrets(1, NO_ROUND, id))
                for id in helping
            }
            _register(members, enrolment.registered_bytes)
            wire.enrolment = True
            made = _watched(members, helpers, enrolment.server(), of, stands)
            _round(of, outcome, made, index=NO_ROUND, steps=enrolment.steps)
            wire.enrolment = False
            of.join(members | helpers, range(devices), devices)
        outcome.devices, outcome.server = parties(of, wire, index)
        helpers = {id: of.helper(id - devices, index, None) for id in helping}
        made = _watched(outcome.devices, helpers, outcome.server, of, stands)
        _round(of, outcome, made, index=index, steps=of.steps, dropouts=dropouts)
    except HpcflError as error:
        outcome.error = error
    return outcome


def _register(members, size):
    if size:
        registry = np.stack([np.frombuffer(one.registers(), np.uint8) for one in members.values()])
        for one in members.values():
            one.learn(registry)


def _round(of, outcome, made, **options):
    outcome.wire.steps = options["steps"]
    devices, helpers, server = made
    played = round_of(
        of, outcome.wire, devices, server, outcome.vectors, helpers=helpers, **options
    )
    try:
        played.play()
    finally:
        outcome.refused |= played.refused


# changes

BOUNDARIES = (
    *(0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 13, 31, 32, 255, 256, 2**16 - 1, 2**16, 2**24, 2**30),
    *(2**31 - 1, 2**31, Q - 1, Q, Q + 1, 2**32 - 3, 2**32 - 2, 2**32 - 1),
)
LOW_ORDER = (
    *(0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255, 2**256 - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
KINDS = (
    *("flip", "flips", "cut", "extend", "replay", "splice", "envelope", "random", "word"),
    *("empty", "patch", "point", "repeat", "huge"),
)
HUGE = 1 << 18


def changed(message, kind, x, y, pool):
    """Return a message changed in one of `KINDS` of ways; `x` and `y`, not negative, say how."""
    raw = bytearray(message)
    size, other = len(raw), pool[x % len(pool)]
    generator = np.random.default_rng((x, y))
    if kind == "flip" and size:
        raw[x // 8 % size] ^= 1 << x % 8
    elif kind == "flips":
        for place in generator.integers(0, max(1, size), 1 + y % 8).tolist():
            if size:
                raw[place] ^= int(generator.integers(1, 256))
    elif kind == "cut":
        del raw[x % max(1, size) :]
    elif kind == "extend":
        raw += generator.bytes(1 + y % 64)
    elif kind == "replay":
        return other
    elif kind == "splice":
        return message[:ENVELOPE] + other[ENVELOPE:]
    elif kind == "envelope":
        return other[:ENVELOPE] + message[ENVELOPE:]
    elif kind == "random":
        raw[ENVELOPE:] = generator.bytes(max(0, size - ENVELOPE))
    elif kind == "word" and size >= 4:
        place = 4 * (x % (size // 4))
        raw[place : place + 4] = BOUNDARIES[y % len(BOUNDARIES)].to_bytes(4, "little")
    elif kind == "empty":
        return b""
    elif kind == "patch" and size:
        start = y % size
        raw[start : start + 1 + x % 32] = other[start : start + 1 + x % 32]
    elif kind == "point" and size >= ENVELOPE + 32:
        # Keys begin at any word behind the envelope: on a ring there are ids in between.
        place = ENVELOPE + 4 * (x % ((size - ENVELOPE - 32) // 4 + 1))
        raw[place : place + 32] = LOW_ORDER[y % len(LOW_ORDER)].to_bytes(32, "little")
    elif kind == "repeat" and size >= ENVELOPE + 64:
        source, target = (ENVELOPE + 32 * (k % ((size - ENVELOPE) // 32)) for k in (x, y))
        raw[target : target + 32] = raw[source : source + 32]
    elif kind == "huge":
        raw += bytes(HUGE)
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


# messages to one party


# In a route the server is told who sent.
SHARED = ("receive_share_keys", "receive_share_masks")


@dataclass
class Stand:
    """A party just before it receives a message, and the message without its envelope."""

    party: Any
    shared: Any
    method: str
    arguments: tuple[Any, ...]

    @property
    def is_server(self):
        return not hasattr(self.party, "id")

    def party_again(self):
        """Return the party as it was, so that it can receive something.

        No party changes in place more than the arrays and collections that are its attributes, the
        server its book of dealings and its sum of uploads, and what some keep from round to round.
        Ciphertexts are added to new ones.
        """
        again = copy.copy(self.party)
        for name, value in vars(again).items():
            if isinstance(value, np.ndarray | dict | list | set):
                vars(again)[name] = value.copy()
            elif isinstance(value, Dealings | Adder | HelpingMember | KeyHolder):
                vars(again)[name] = copy.deepcopy(value)
            elif isinstance(value, RangeSum):
                vars(again)[name] = copied = copy.copy(value)
                copied._sum = copy.deepcopy(value._sum)
        return again

    def state(self, party):
        """Return all that a party knows, as bytes."""
        known = {
            name: self._written(party, value)
            for name, value in vars(party).items()
            # Where secrets are drawn from is not knowledge.
            if value is not self.shared and not callable(value)
        }
        return pickle.dumps(known)

    @staticmethod
    def _written(party, value):
        """Return a value of a party's as what can be written as bytes."""
        if isinstance(value, RangeSum):
            return value._sum
        if isinstance(value, ckks.Context):
            return value.written()
        if isinstance(party, CkksServer) and value is party._sum:
            return ckks.Context.summed(value)
        return value

    def with_change(self, kind, x, y, pool):
        """Return the arguments with the message changed, or what is said of who sent it."""

        def change(payload):
            sealed = changed(bytes(ENVELOPE) + payload.tobytes(), kind, x, y, pool)
            return np.frombuffer(sealed[ENVELOPE:], np.uint8)

        first, *others = self.arguments
        if not others:
            if self.method in SHARED:
                # The server is told the ids of those who shared.
                return (np.append(first, y % 12),)
            return (change(first),)
        if isinstance(first, int):
            sender = first if y % 4 else (first + x) % 12
            return sender, change(others[0])
        # Who sent a row, and how long it is, the transport sees to.
        senders, rows = first, others[0].copy()
        which = y % len(senders)
        rows[which] = fit(change(rows[which]), rows.shape[1])
        return senders, rows


class _Watched:
    """Stands for a party, and notes what it was before each message."""

    def __init__(self, party, shared, stands):
        self._party, self._shared, self._stands = party, shared, stands

    def __getattr__(self, name):
        found = getattr(self._party, name)
        if not name.startswith("receive_"):
            return found

        def receive(*arguments):
            before = Stand(self._party, self._shared, name, arguments).party_again()
            self._stands.append(Stand(before, self._shared, name, arguments))
            return found(*arguments)

        return receive


def _watched(devices, helpers, server, shared, stands):
    if stands is None:
        return devices, helpers, server
    wrapped = (
        {id: _Watched(party, shared, stands) for id, party in parties.items()}
        for parties in (devices, helpers)
    )
    return *wrapped, _Watched(server, shared, stands)


@lru_cache(maxsize=64)
def stands_of(case, devices):
    """Return what every party of a round was before each of its messages."""
    stands = []
    # Some uploads are missing, so that there are mask keys to reconstruct.
    phases = protocol(case, devices).phases()
    gone = {1: "masked_input"} if "unmask" in phases else {}
    outcome = play(case, devices, gone, stands=stands)
    assert outcome.error is None
    return stands


class Spoiling(Wire):
    """A wire on which what device 2 deals is spoiled."""

    def route(self, senders, rows, width):
        blocks = [block.copy() for block in rows]
        for id, block in zip(senders, blocks, strict=True):
            block[:, ENVELOPE:] ^= id == 2
        return super().route(senders, blocks, width)


@lru_cache(maxsize=64)
def told_of_expulsions(case, devices):
    """Return what every device but device 2 was before it was told that this one is expelled."""
    stands = []
    outcome = play(case, devices, stands=stands, wire=Spoiling(devices))
    assert outcome.error is None
    assert [2] == list(outcome.refused)
    return [one for one in stands if one.method == "receive_expelled" and one.party.id != 2]


def receive(stand, kind, x, y, pool):
    """Let a party receive a changed message; return ``accepted`` or ``refused``.

    A server that refuses one must be as if none had come.
    """
    party = stand.party_again()
    before = stand.state(party) if stand.is_server else b""
    try:
        getattr(party, stand.method)(*stand.with_change(kind, x, y, pool))
    except BelowThresholdError:
        # Of too few senders, which is not a message.
        assert stand.method in SHARED
        assert stand.is_server
        return "refused"
    except (MessageError, RefusedError):
        assert not stand.is_server or before == stand.state(party), stand.method
        return "refused"
    return "accepted"
