"""Rounds with devices that do what they like, beside a server that is curious.

Hostile devices are the project's own devices behind a wrapper: they know the protocol, see what the
server sees (they collude with it), choose their victims when the ring is known, and change what
they send. Whenever a round is accepted, everything that was promised is checked from what happened
in it, by counting: who was honest, who survived, who is next to whom.

`play` uses nothing of the project's but what a round cannot do without, so that the campaign can be
run on an earlier version as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.bench.rounds import enrol
from hpcfl.comm.ledger import Ledger
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern
from hpcfl.comm.round import AFTER, Round
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.errors import HpcflError

ENVELOPE = 16
ABSENT = 2**32 - 1
Rows = NDArray[np.uint8]
Generator = np.random.Generator
# What a row, which a hostile device sends to a victim, is replaced by; None for no row at all.
Spoil = Callable[[Rows, Rows, Generator], Sequence[Rows]]


def foreign(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Put it into an envelope of another round, step, sender or receiver."""
    spoiled = row.copy()
    spoiled[int(generator.choice([0, 1, 2, 4, 8]))] ^= 1 + int(generator.integers(200))
    return [spoiled]


def instead(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Send two rows to somebody else's address, and none to the victim."""
    return []


def twice(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Send a second row behind the first."""
    return [row, foreign(row, other, generator)[0], row]


def garbled(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Change some bytes of the ciphertext."""
    spoiled = row.copy()
    places = generator.integers(ENVELOPE, row.size, 1 + int(generator.integers(4)))
    spoiled[places] ^= generator.integers(1, 256, places.size).astype(np.uint8)
    return [spoiled]


def anything(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Send random bytes, as many rows as it likes."""
    count = int(generator.integers(4))
    return [generator.integers(0, 256, row.size).astype(np.uint8) for _ in range(count)]


def of_another(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Send what was meant for another device, under the victim's address."""
    spoiled = other.copy()
    spoiled[12:16] = row[12:16]
    return [spoiled]


def to_nobody(row: Rows, other: Rows, generator: Generator) -> list[Rows]:
    """Address it to a device that does not exist."""
    spoiled = row.copy()
    spoiled[12:16].view("<u4")[0] = int(generator.choice([2**31, 10**6, 2**32 - 1, 2**32 - 2]))
    return [spoiled]


SPOILS: dict[str, Spoil] = {
    spoil.__name__: spoil
    for spoil in (foreign, instead, twice, garbled, anything, of_another, to_nobody)
}


@dataclass
class Plan:
    """What the adversary does in a round.

    Attributes
    ----------
    hostile : tuple of int
        Devices that collude with the server, and with each other.
    victims : tuple of int
        To whom they send spoiled rows.
    spoil : str
        Of `SPOILS`, or "" for good rows.
    contradict : bool
        Whether their shares, rightly sealed, belong to no secret.
    other : bool
        Whether they share, rightly, other secrets than those that they mask with.
    lie : bool
        Whether they answer with shares that they were not sent.
    complain : bool
        Whether they say that everybody's shares are bad.
    vanish : str
        The phase before which they disappear; "" for never.
    """

    hostile: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    spoil: str = ""
    contradict: bool = False
    other: bool = False
    lie: bool = False
    complain: bool = False
    vanish: str = ""
    seed: int = 0


@dataclass
class Outcome:
    """What came of a round."""

    protocol: Any
    plan: Plan
    devices: dict[int, Any]
    server: Any
    vectors: NDArray[np.float64]
    dropouts: dict[int, str]
    error: HpcflError | None = None
    refused: dict[int, HpcflError] = field(default_factory=dict)
    left: dict[int, HpcflError] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        return self.error is None

    @property
    def honest(self) -> list[int]:
        """The honest devices that did not drop out by themselves."""
        hostile = {*self.plan.hostile}
        return [id for id in self.devices if id not in hostile and id not in self.dropouts]

    @property
    def survivors(self) -> list[int]:
        return list(self.server.survivors)


class Hostile:
    """A device that sends what it likes where it likes, and otherwise plays along."""

    def __init__(self, inner: Any, plan: Plan, generator: Generator) -> None:
        self._inner, self._plan, self._generator = inner, plan, generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_share_keys(self) -> Any:
        receivers, rows = self._inner.send_share_keys()
        if self._plan.contradict:
            shares = self._generator.integers(0, 2**32 - 5, (len(rows), rows.shape[1] // 4 - 4))
            rows = self._sealed(receivers, shares)
        if self._plan.other:
            # A constant is a polynomial of any degree, and its value at zero what it is.
            limbs = self._generator.integers(0, 2**32 - 5, rows.shape[1] // 4 - 4)
            rows = self._sealed(receivers, np.tile(limbs, (len(rows), 1)))
            own = self._inner._links.holders.index(self._inner.id)
            self._inner._shares[own] = limbs
        return receivers, rows

    def _sealed(self, receivers: Any, shares: NDArray[np.int64]) -> Rows:
        """Return rows with any shares, sealed as the device would seal its own."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        inner = self._inner
        sealed = np.empty((len(shares), 4 * shares.shape[1] + 16), np.uint8)
        for k, id in enumerate(receivers.tolist()):
            place = inner._links.holders.index(id)
            nonce, associated = inner._share_labels(inner.id, id)
            share = shares[k].astype("<u4").tobytes()
            cipher = AESGCM(inner._transport_keys[place])
            sealed[k] = np.frombuffer(cipher.encrypt(nonce, share, associated), np.uint8)
        return sealed

    def send_checks(self) -> Any:
        payload = self._inner.send_checks()
        return np.full_like(payload, 255) if self._plan.complain else payload

    def send_unmask(self) -> Any:
        payload = self._inner.send_unmask()
        if not self._plan.lie:
            return payload
        limbs = payload.view("<u4").copy()
        limbs[limbs != ABSENT] = (limbs[limbs != ABSENT].astype(np.uint64) * 3 + 1) % (2**32 - 5)
        return limbs.view(np.uint8)


class Network(Loopback):
    """A loopback in which hostile devices' rows are spoiled on the way out."""

    def __init__(self, devices: int, plan: Plan, generator: Generator) -> None:
        super().__init__(devices)
        self._plan, self._generator = plan, generator

    def route(self, senders: Any, rows: Any, *rest: Any) -> Any:
        spoiled = [
            self._spoil(block) if sender in self._plan.hostile else block
            for sender, block in zip(senders, rows, strict=True)
        ]
        return super().route(senders, spoiled, *rest)

    def _spoil(self, block: Rows) -> Rows:
        if not self._plan.spoil or not len(block):
            return block
        sent: list[Rows] = []
        for k, row in enumerate(block):
            if int(row[12:16].view("<u4")[0]) not in self._plan.victims:
                sent.append(row)
                continue
            other = block[(k + 1) % len(block)]
            sent += SPOILS[self._plan.spoil](row, other, self._generator)
            if self._plan.spoil == "instead":
                sent.append(other)
        return np.array(sent, np.uint8).reshape(-1, block.shape[1])


def make(name: str, devices: int, dim: int = 24, **options: Any) -> Any:
    """Return a protocol; options that an earlier version does not know are left out."""
    known = {one.name for one in dataclasses.fields(Parameters)}
    security = options.get("security", "passive")
    options = {key: value for key, value in options.items() if key in known}
    return find(name, security)(Parameters(devices, dim, **{"levels": 1000, **options}))


def play(
    protocol: Any,
    plan: Plan,
    *,
    index: int = 0,
    dropouts: Mapping[int, str] | None = None,
    choose: Callable[[Any], Mapping[int, str]] | None = None,
    wrap: Callable[[int, Any, dict[int, Any]], Any] | None = None,
) -> Outcome:
    """Play a round.

    Parameters
    ----------
    protocol, plan
        What is played, and what against it.
    index : int
        Number of the round.
    dropouts : mapping, optional
        Who drops out whatever happens.
    choose : callable, optional
        Takes the server when the ring is known, and returns who drops out besides.
    wrap : callable, optional
        Takes the id, a device and all devices, and returns what plays in the device's place.
    """
    count, dim = protocol.parameters.devices, protocol.parameters.dim
    generator = np.random.default_rng((plan.seed, index))
    vectors = generator.uniform(-1, 1, (count, dim))
    secrets = {id: insecure_secrets(plan.seed, index, id) for id in range(count)}
    enrolled = enrol(type(protocol), Loopback(count), first_round=index, insecure_seed=plan.seed)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(count), count)
    devices = {id: protocol.device(id, index, secrets[id]) for id in range(count)}
    server = protocol.server(index, np.zeros(dim, np.float32))
    players: dict[int, Any] = dict(devices)
    for id in plan.hostile:
        players[id] = Hostile(devices[id], plan, generator)
    if wrap is not None:
        players = {id: wrap(id, player, devices) for id, player in players.items()}
    leaving = dict(dropouts or {})
    if plan.vanish:
        leaving |= dict.fromkeys(plan.hostile, plan.vanish)
    outcome = Outcome(protocol, plan, devices, server, vectors, leaving)

    def watch(moment: str, phase: str) -> None:
        if choose is not None and (moment, phase) == (AFTER, "advertise_keys"):
            leaving.update(choose(server))

    played = Round(
        protocol.steps,
        Network(count, plan, generator),
        Ledger(protocol.phases(), count, range(count), True),
        index=index,
        devices=players,
        server=server,
        inputs=lambda id: vectors[id],
        dropouts=leaving,
        dim=dim,
        largest_message=protocol.largest_message,
        watch=watch,
    )
    try:
        played.play()
    except HpcflError as error:
        outcome.error = error
    outcome.refused, outcome.left = dict(played.refused), dict(played.left)
    return outcome


def routes(protocol: Any) -> bool:
    """Return whether devices of a protocol send each other anything."""
    return any(step.pattern is Pattern.ROUTE for step in protocol.steps)


# What must hold of a round that was accepted


def wrong_sum(outcome: Outcome) -> list[int]:
    """Return the coordinates at which the sum is not that of the survivors.

    A device that shares another seed than that of its mask has uploaded another vector: where it
    sent anything, nothing can be said.
    """
    total = np.zeros(outcome.protocol.parameters.dim, np.int64)
    for id in outcome.survivors:
        where, values = outcome.devices[id].contribution(outcome.vectors[id])
        total[where] += values
    differs = outcome.server.total != total
    for id in outcome.plan.hostile if outcome.plan.other else ():
        if id in outcome.survivors:
            differs[outcome.devices[id].sent()] = False
    return np.flatnonzero(differs).tolist()


def missing_honest(outcome: Outcome) -> list[int]:
    """Return the honest devices that stayed, and whose vectors are not in the sum."""
    return sorted({*outcome.honest} - {*outcome.survivors})


def ring_of(outcome: Outcome) -> list[int] | None:
    """Return the ids around the ring as the server has it, None if there is none."""
    order = getattr(getattr(outcome.server, "_links", None), "order", None)
    return None if order is None else order.tolist()


def opened(outcome: Outcome) -> list[int]:
    """Return the honest devices of whose holders as many collude as reconstruct a secret."""
    links, hostile = outcome.server._links, {*outcome.plan.hostile}
    order = ring_of(outcome)
    holders = {id: outcome.devices[id]._links.holders for id in outcome.survivors}
    assert order is None or all({*held} <= {*order} for held in holders.values())
    return [
        id
        for id, held in holders.items()
        if id not in hostile and len(hostile & {*held}) >= links.threshold
    ]


def parts(outcome: Outcome) -> int:
    """Return into how many parts the honest survivors fall that masks connect."""
    hostile = {*outcome.plan.hostile}
    left = {id for id in outcome.survivors if id not in hostile}
    count = 0
    while left:
        count += 1
        reached = [left.pop()]
        while reached:
            linked = left & {*outcome.devices[reached.pop()]._links.holders}
            left -= linked
            reached += linked
    return count


def honest_in_cohorts(outcome: Outcome) -> list[int]:
    """Return for every coordinate how many honest survivors' values are in its sum."""
    hostile = {*outcome.plan.hostile}
    counts = np.zeros(outcome.protocol.parameters.dim, np.int64)
    for id in outcome.survivors:
        if id not in hostile:
            counts[outcome.devices[id].sent()] += 1
    return counts.tolist()


def violations(outcome: Outcome) -> list[str]:
    """Return what was promised of an accepted round and does not hold."""
    protocol, found = outcome.protocol, []
    parameters = protocol.parameters
    if wrong_sum(outcome):
        found.append("the sum is wrong")
    if routes(protocol):
        if opened(outcome):
            found.append(f"colluders can open both secrets of {opened(outcome)}")
        if protocol.name != "cohort" and parts(outcome) > 1:
            found.append(f"the honest survivors fall into {parts(outcome)} parts")
    if protocol.name == "cohort" and min(honest_in_cohorts(outcome)) < parameters.min_cohort > 1:
        found.append(f"a cohort is left with {min(honest_in_cohorts(outcome))} honest survivors")
    return found
