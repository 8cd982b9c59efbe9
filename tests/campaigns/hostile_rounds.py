"""Rounds with malicious devices and a curious server.

Hostile devices are the project's own devices behind a wrapper. They know the protocol, see all that
the server sees (they collude with it), choose their victims when the ring is known, and change
their messages. In every accepted round all promises are checked by counting what happened: the
honest devices, the survivors, the neighbours on the ring, and the noise in each sum.

All secrets, also the server's, are derived from a seed, so that a round can be repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import protocol_rounds
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from protocol_rounds import Played, seeded_sources

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.sharing import KEY_SHARE, SEED_SHARE
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.crypto.keys import KeyPair
from hpcfl.errors import RefusedError
from hpcfl.rounds.driver import AFTER
from hpcfl.rounds.enrolment import enrol
from hpcfl.rounds.observer import RoundObserver

ENVELOPE = 16
ABSENT = 2**32 - 1
# Limbs are below this prime.
Q = 2**32 - 5
# The message, within a phase, in which devices answer the challenge.
CHECKS = "checks"

# Functions that return the replacement of a hostile device's row to a victim, from it and another.


def foreign(row, other, generator):
    """Put it into an envelope of another round, step, sender or receiver."""
    spoiled = row.copy()
    spoiled[int(generator.choice([0, 1, 2, 4, 8]))] ^= 1 + int(generator.integers(200))
    return [spoiled]


def instead(row, other, generator):
    """Send two rows to somebody else's address, and none to the victim."""
    return [other]


def garbled(row, other, generator):
    """Change some bytes of the ciphertext."""
    spoiled = row.copy()
    places = generator.integers(ENVELOPE, row.size, 1 + int(generator.integers(4)))
    spoiled[places] ^= generator.integers(1, 256, places.size).astype(np.uint8)
    return [spoiled]


def of_another(row, other, generator):
    """Send another device's row, under the victim's address."""
    spoiled = other.copy()
    spoiled[12:16] = row[12:16]
    return [spoiled]


SPOILS = {spoil.__name__: spoil for spoil in (foreign, instead, garbled, of_another)}
# Whether a hostile device answers falsely about each of a dealer's two secrets; None: no share.
ANSWERS = {"uniform": (True, True), "key": (True, False), "seed": (False, True), "absent": None}
# Which of two owners' keys for transport and for masks a device advertises, if not its own.
COPIES = {
    "both": (0, 0),
    "of two": (0, 1),
    "transport": (0, None),
    "mask": (None, 0),
    "twins": (None, None),
}


@dataclass
class Plan:
    """The actions of the adversary in a round."""

    hostile: tuple[int, ...] = ()  # devices that collude with the server and with each other
    victims: tuple[int, ...] = ()  # devices to which they send spoiled rows
    spoil: str = ""  # one of SPOILS, or "" for good rows
    contradict: bool = False  # their shares, correctly sealed, belong to no secret
    other: bool = False  # they correctly share secrets other than those of their masks
    lie: bool = False  # they answer with shares other than those that they received
    complain: bool = False  # they claim that all received shares are bad
    misdealt: tuple[int, ...] = ()  # receivers of correctly sealed shares that do not fit the rest
    answer: str = ""  # one of ANSWERS: their answers to the challenge; "" for correct ones
    about: tuple[int, ...] = ()  # the dealers about whose shares they answer so
    copy: str = ""  # one of COPIES: the public keys that they copy; "" for none
    owners: tuple[int, int] = (0, 0)  # of those keys
    vanish: str = ""  # one of `moments`, before which they drop out; "" for never
    seed: int = 0
    # Other actions for some of the hostile devices.
    each: Mapping[int, "Plan"] = field(default_factory=dict)

    def of(self, id):
        """Return a device's plan."""
        return self.each.get(id, self)

    @property
    def tampered(self):
        """Whether their masks are not those that all others assume: as if the vector differed."""
        return self.other or self.copy == "mask"


@dataclass
class Outcome:
    """A played round with the adversary's plan."""

    played: Played
    plan: Plan

    def __getattr__(self, name):
        return getattr(self.played, name)

    @property
    def accepted(self):
        return self.error is None

    @property
    def survivors(self):
        return list(self.server.survivors)

    @property
    def honest_survivors(self):
        return {*self.survivors} - {*self.plan.hostile}


class Wrapped:
    """A party that acts like another one, except for the given methods."""

    def __init__(self, inner, **others):
        self._inner = inner
        vars(self).update(others)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Hostile(Wrapped):
    """A device that sends messages as its plan says, and otherwise follows the protocol."""

    def __init__(self, inner, plan, devices, generator):
        super().__init__(inner)
        self._plan, self._generator = plan, generator
        self._devices, self._answered = devices, False

    def send_advertise_keys(self):
        payload = self._inner.send_advertise_keys()
        if not self._plan.copy:
            return payload
        inner = self._inner
        pairs = [inner.state.transport, inner.state.masking]
        if self._plan.copy == "twins":
            pairs = [pairs[0], pairs[0]]
        for half, which in enumerate(COPIES[self._plan.copy]):
            if which is not None:
                known = advertised(self._devices[self._plan.owners[which]])
                # The private key stays its own.
                public = known[32 * half : 32 * half + 32]
                pairs[half] = KeyPair(pairs[half].private, public)
        inner.state.transport, inner.state.masking = pairs
        return np.frombuffer(pairs[0].public + pairs[1].public, np.uint8)

    def send_share_keys(self):
        receivers, rows = self._inner.send_share_keys()
        limbs = rows.shape[1] // 4 - 4
        if self._plan.contradict:
            rows = self._sealed(receivers, self._elements(len(rows), limbs))
        if self._plan.other:
            # A constant is a polynomial of any degree, and equals its value at zero.
            secret = self._elements(limbs)
            rows = self._sealed(receivers, np.tile(secret, (len(rows), 1)))
            self._inner._own_share = secret
        some = np.flatnonzero(np.isin(receivers, self._plan.misdealt))
        if some.size:
            rows = rows.copy()
            rows[some] = self._sealed(receivers[some], self._elements(some.size, limbs))
        return receivers, rows

    def _elements(self, *shape):
        return self._generator.integers(0, Q, shape)

    def _sealed(self, receivers, shares):
        """Return rows with the given shares, sealed like the device's own."""
        inner = self._inner
        sealed = np.empty((len(shares), 4 * shares.shape[1] + 16), np.uint8)
        places = [inner._links.holders.index(id) for id in receivers.tolist()]
        seals = inner._seals(places, [(inner.id, id) for id in receivers.tolist()])
        for row, share, (key, nonce, associated) in zip(sealed, shares, seals, strict=True):
            plain = share.astype("<u4").tobytes()
            row[:] = np.frombuffer(AESGCM(key).encrypt(nonce, plain, associated), np.uint8)
        return sealed

    def send_checks(self):
        payload = self._inner.send_checks()
        if self._plan.complain:
            return np.full_like(payload, 255)
        if not self._plan.answer:
            return payload
        self._answered = True
        members = self._inner._members()
        answers = payload.reshape(-1).view(np.uint8).view("<u4").reshape(len(members), -1).copy()
        rows = np.flatnonzero(np.isin(members, self._plan.about))
        which = ANSWERS[self._plan.answer]
        if which is None:
            answers[rows] = ABSENT
        else:
            uniform = self._elements(rows.size, answers.shape[1])
            answers[rows] = np.where(which, uniform, answers[rows])
        return answers.reshape(-1).view(np.uint8)

    def send_unmask(self):
        payload = self._inner.send_unmask()
        limbs = payload.view("<u4").copy()
        if self._plan.lie:
            limbs[limbs != ABSENT] = (limbs[limbs != ABSENT].astype(np.uint64) * 3 + 1) % Q
        elif self._answered:
            # It claims to have no share of dropped devices about which it has answered falsely: a
            # share that does not fit its answers would expose it.
            request = self._inner.state.request
            of_keys = limbs[SEED_SHARE * len(request.survivors) :].reshape(-1, KEY_SHARE)
            of_keys[np.isin(request.dropped, self._plan.about)] = ABSENT
        return limbs.view(np.uint8)


class HostileHolder(Wrapped):
    """A device that denies having pieces, or adds up other ones."""

    def __init__(self, inner, plan, devices, generator):
        super().__init__(inner)
        self._plan, self._generator = plan, generator

    def send_held(self):
        payload = self._inner.send_held()
        if self._plan.complain:
            return np.zeros_like(payload)
        held = np.unpackbits(payload)
        if self._plan.answer:
            held[[*self._plan.about]] = 0
        return np.packbits(held)

    def send_unmask(self):
        return self._added_up(self._inner.send_unmask())

    def send_sum_shares(self):
        return self._added_up(self._inner.send_sum_shares())

    def _added_up(self, payload):
        if not self._plan.lie:
            return payload
        return self._generator.integers(0, Q, payload.size // 4).astype("<u4").view(np.uint8)


def gone():
    """Drop out: to the others a device that gives a reason for leaving is gone, too."""
    raise RefusedError("it is gone")


def moments(protocol):
    """Return the phases, and the exchange within a phase, before which a device can drop out."""
    found = [phase for phase in protocol.phases() if phase not in ("model", "result")]
    if any(step.name == CHECKS for step in protocol.steps):
        # Between a device's shares and its answers.
        found.insert(found.index("masked_input"), CHECKS)
    return found


def advertised(device):
    """Return the keys that a device will advertise or has advertised, for an early listener."""
    if device.state.masking.public:
        return bytes(device.state.transport.public + device.state.masking.public)
    payload = device.send_advertise_keys()
    device.send_advertise_keys = lambda: payload
    return bytes(payload.tobytes())


def spoiled(block, plan, generator):
    """Return a device's rows, with those to victims spoiled."""
    sent = []
    for row, other in zip(block, np.roll(block, -1, axis=0), strict=True):
        is_victim = int(row[12:16].view("<u4")[0]) in plan.victims
        sent += SPOILS[plan.spoil](row, other, generator) if is_victim else [row]
    return np.array(sent, np.uint8).reshape(-1, block.shape[1])


def make(name, devices, dim=24, **options):
    """Return a protocol with few levels."""
    security = options.get("security", "passive")
    return find(name, security)(Parameters(devices, dim, **{"levels": 1000, **options}))


class Choosing(RoundObserver):
    """Lets devices drop out; `choose` takes them from the server once the ring is known."""

    def __init__(self, choose, leaving):
        self._choose, self._leaving, self.server = choose, leaving, None

    def at(self, index, moment, phase):
        if self._choose is not None and (moment, phase) == (AFTER, "advertise_keys"):
            self._leaving.update(self._choose(self.server))


def play(protocol, plan, *, dropouts=None, choose=None, careless=False):
    """Play a round against a plan.

    `dropouts` has the devices that drop out in any case, with one of their `moments`. `choose`
    takes the server when the ring is known, and returns further dropouts. A `careless` server does
    not check the promises, so that devices must. Devices enrol for this round if needed.
    """
    count, dim = protocol.parameters.devices, protocol.parameters.dim
    generator = np.random.default_rng((plan.seed, 0))
    enrolled = enrol(type(protocol), Loopback(count), insecure_seed=plan.seed)
    if enrolled is not None:
        protocol.join(enrolled.devices, range(count), count)
    leaving = dict(dropouts or {})
    leaving |= {id: plan.of(id).vanish for id in plan.hostile if plan.of(id).vanish}
    devices, chosen = {}, Choosing(choose, leaving)
    hostile = HostileHolder if hasattr(protocol, "code") else Hostile

    def wrap(id, device):
        devices[id] = device
        if id in plan.hostile:
            device = hostile(device, plan.of(id), devices, generator)
        return Wrapped(device, send_checks=gone) if leaving.get(id) == CHECKS else device

    def spoil(header, message):
        does = plan.of(header.sender)
        if message.ndim > 1 and header.sender in plan.hostile and does.spoil:
            return spoiled(message, does, generator)
        return message

    def server(protocol, *secrets):
        chosen.server = protocol.server(*secrets)
        if careless:
            chosen.server._protocol = Wrapped(protocol, promises=list)
        return chosen.server

    played = protocol_rounds.play(
        *(protocol, generator.uniform(-1, 1, (count, dim)), leaving),
        sources=seeded_sources(count, seed=plan.seed),
        change=spoil,
        wrap=wrap,
        server=server,
        observer=chosen,
        raises=False,
    )
    played.devices = devices
    return Outcome(played, plan)


# Conditions for an accepted round


def wrong_sum(outcome):
    """Return the coordinates at which the sum is not that of the survivors.

    A device with masks that the others do not assume has in effect uploaded another vector. So the
    coordinates that it sent are not checked, and none at all if secrets choose the coordinates.
    """
    total = np.zeros(outcome.protocol.parameters.dim, np.int64)
    for id in outcome.survivors:
        where, values = outcome.devices[id].contribution(outcome.vectors[id])
        total[where] += values
    differs = outcome.server.total != total
    for id in {*outcome.plan.hostile} & {*outcome.survivors}:
        plan = outcome.plan.of(id)
        if not plan.tampered:
            continue
        everywhere = outcome.protocol.name == "sparse" and plan.copy
        differs[slice(None) if everywhere else outcome.devices[id].sent()] = False
    return np.flatnonzero(differs).tolist()


def missing_honest(outcome):
    """Return the honest devices that stayed but whose vectors are not in the sum."""
    away = {*outcome.plan.hostile, *outcome.dropouts, *outcome.survivors}
    return sorted({*outcome.devices} - away)


def order_of(server):
    """Return the ids around the ring once the server has drawn the order; None without a ring."""
    order = getattr(getattr(server, "_links", None), "order", None)
    return None if order is None else order.tolist()


def opened(outcome):
    """Return the honest devices with enough colluding holders to reconstruct their secrets."""
    hostile, order = {*outcome.plan.hostile}, order_of(outcome.server)
    holders = {id: {*outcome.devices[id]._links.holders} for id in outcome.survivors}
    assert order is None or all(held <= {*order} for held in holders.values())
    return [
        id
        for id in outcome.survivors
        if id not in hostile and len(hostile & holders[id]) >= outcome.server._links.threshold
    ]


def parts(outcome, among):
    """Return the connected parts of some honest survivors, with links by masks."""
    left, found = {*among}, []
    while left:
        reached = [left.pop()]
        part = {*reached}
        while reached:
            linked = left & {*outcome.devices[reached.pop()]._links.holders}
            left -= linked
            part |= linked
            reached += linked
        found.append(part)
    return found


def honest_sums(outcome):
    """Return the linked parts of honest devices for each set of devices in one sum.

    If there are several parts, the server learns the sum of each. At a coordinate, only devices
    that both send it share a mask, so links through other devices do not count.
    """
    survivors = np.array(sorted(outcome.survivors))
    sends = np.zeros((len(survivors), outcome.protocol.parameters.dim), np.bool_)
    for row, id in zip(sends, survivors.tolist(), strict=True):
        row[outcome.devices[id].sent()] = True
    sums = [{*survivors[column].tolist()} for column in np.unique(sends, axis=1).T]
    return [parts(outcome, one & outcome.honest_survivors) for one in sums]


def violations(outcome):
    """Return the promises of an accepted round that do not hold."""
    protocol, found = outcome.protocol, []
    if wrong_sum(outcome):
        found.append("the sum is wrong")
    if not hasattr(protocol, "topology"):
        return found
    if opened(outcome):
        found.append(f"colluders can open both secrets of {opened(outcome)}")
    sparse = protocol.name == "sparse"
    summed = [parts(outcome, outcome.honest_survivors)] if sparse else honest_sums(outcome)
    count = max(map(len, summed))
    if count > 1:
        where = " of a cohort" if protocol.name == "cohort" else ""
        found.append(f"the honest survivors{where} fall into {count} parts")
    fewest = min(sum(map(len, one)) for one in summed)
    if protocol.name == "cohort" and fewest < protocol.parameters.min_cohort > 1:
        found.append(f"a cohort is left with {fewest} honest survivors")
    if protocol.noise is not None:
        noises = min((len(part) for one in summed for part in one), default=0)
        found += little_noise(outcome, noises)
    return found


def little_noise(outcome, summed):
    """Return in words whether a sum holds less noise than the round's account assumes.

    `summed` is the least number of honest devices whose noise is in a sum.
    """
    promised = outcome.protocol.honest_in_sum()
    among = getattr(outcome.protocol, "honest_among", None)
    counted = promised if among is None else among(len(outcome.survivors))
    if summed >= max(promised, counted):
        return []
    return [
        f"a sum holds the noise of {summed} honest devices, {promised} were promised and {counted} "
        "counted on"
    ]
