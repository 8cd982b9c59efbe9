"""Rounds under attack: whatever was promised of a round that was accepted must hold of it.

    python tests/security/promise_campaign.py --rounds 10000 --seed 1

Every round is one of `STRATEGIES`, over all protocols, with an adversary that chooses its victims
after it has seen what there is to see. What is promised is read from what `hpcfl bench` prints, and
recomputed, by code of its own, from what happened: where a number is a probability, exactly, with
fractions.

What must not be at all (a wrong sum, an honest device made to leave, a number that is printed and
too small, a round that is accepted although what was promised is out of reach) is counted as
broken, and one such round is one too many. What is promised but for a probability may fail as often
as it says: with security bits that are chosen small, so that failures can be seen at all, their
number is compared with its exact distribution, and is too large if chance gives as many with a
probability below `ALARM`, for each strategy. So of 1,000 campaigns of a program without a flaw, one
or two raise an alarm.

Each strategy says in its first line what it does, and there is a test of the suite,
`test_promises_hold.py`, that fails when what withstands it is taken away.
"""

from __future__ import annotations

import argparse
import copy
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import Any

import hostile_rounds
import numpy as np
from hostile_rounds import (
    Plan,
    Wrapped,
    advertised,
    make,
    missing_honest,
    moments,
    play,
    violations,
)

from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.errors import UsageError

Generator = np.random.Generator
# Each protocol that hides anything, and how it is run where little depends on it.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "secagg": ("secagg", {}),
    "secagg --degree 6": ("secagg", {"degree": 6}),
    "secagg-graph": ("secagg-graph", {"degree": 8}),
    "sparse": ("sparse", {"alpha": 0.5}),
    "cohort": ("cohort", {"alpha": 0.5}),
    "secagg --security active": ("secagg", {"security": "active"}),
    "sparse --security active": ("sparse", {"security": "active", "alpha": 0.5}),
}
# Thresholds of rings: with two neighbours gone, two holders more than that answer.
SMALL_THRESHOLDS = {6: 3, 8: 5}
# How often promises may fail here: 2 to the minus this; and how often a round may not end.
BITS = 12
CORRECTNESS_BITS = 20
# With what probability a strategy may raise an alarm by chance.
ALARM = 1e-4
# Printed numbers are rounded to a tenth of a bit, or to two digits.
ROUNDED = Fraction(11, 10)
POWER = r"(2\^-?\d+(?:\.\d+)?|0\b)"


@dataclass
class Finding:
    """One round of the campaign.

    Attributes
    ----------
    strategy, case : str
        What was done, and to which protocol.
    accepted : bool
        Whether the round ended with a sum.
    broken : list of str
        What is wrong and must not be.
    failed : list of str
        What was promised but for a probability, and does not hold.
    chance : float
        That probability, by the promise's own words; of a round before it is played.
    """

    strategy: str
    case: str
    accepted: bool
    broken: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    chance: float = 0.0


def _made(case, devices, **options):
    name, fixed = CASES[case]
    protocol = make(name, devices, **{"dropout": 0.2, "gamma": 0.1, **fixed, **options})
    if protocol.topology.degree in SMALL_THRESHOLDS and "degree" in fixed:
        protocol.topology.threshold = SMALL_THRESHOLDS[protocol.topology.degree]
    return protocol


def _finding(strategy, case, outcome, *broken, chance=0.0):
    """Return what a round has come to.

    Where a promise may fail with a chance, all that is found of an accepted round but a wrong sum
    counts as its failure.
    """
    found = Finding(strategy, case, outcome.accepted, [*filter(None, broken)], [], float(chance))
    # With a floor, all of a cohort are linked.
    sure = ["the sum is wrong"]
    sure += ["fall into"] if outcome.protocol.parameters.min_cohort > 1 else []
    for one in violations(outcome) if outcome.accepted else []:
        certain = not chance or any(phrase in one for phrase in sure)
        (found.broken if certain else found.failed).append(one)
    return found


def _honest_lost(outcome):
    """Return in words whether an attack has cost honest devices their round."""
    if not outcome.accepted:
        return f"the round ended: {outcome.error}"
    missing = missing_honest(outcome)
    return f"honest devices {missing} were lost" if missing else ""


def to_spare(protocol):
    """Return how many holders of a secret can be gone, and two more than needed answer."""
    return int(protocol.topology.degree + 1 - protocol.topology.threshold - 2)


def _part(rate, count):
    """Return as many of some devices as a rate says, rounded down."""
    return math.floor(Fraction(repr(rate)) * count)


# One device that does what it likes

TRICKS = (
    *("spoil", "spoil", "contradict", "other", "lie", "complain", "misdeal", "answer", "answer"),
    *("misdeal answer", "spoil answer", "copy"),
)


def _one_device(generator, protocol, me, trick, seed):
    """Return what a device does, of what there is to choose from."""
    devices = protocol.parameters.devices
    others = [id for id in range(devices) if id != me]

    def some():
        count = int(generator.choice([1, 2, devices // 2, devices - 1]))
        return tuple(generator.choice(others, count, replace=False).tolist())

    def one_of(names, wanted):
        return str(generator.choice([*names])) if wanted in trick.split() else ""

    return Plan(
        hostile=(me,),
        victims=some(),
        spoil=one_of(hostile_rounds.SPOILS, "spoil"),
        contradict=trick == "contradict",
        other=trick == "other",
        lie=trick == "lie",
        complain=trick == "complain",
        misdealt=some() if "misdeal" in trick else (),
        answer=one_of(hostile_rounds.ANSWERS, "answer"),
        about=some(),
        copy=one_of(hostile_rounds.COPIES, "copy"),
        owners=tuple(generator.choice(others, 2, replace=False).tolist()),
        vanish=str(generator.choice(["", *moments(protocol)])) if generator.integers(2) else "",
        seed=seed,
    )


def _before(plan, protocol):
    """Return the moments at which others may drop out, so that one device alone is to blame.

    A device that vanishes, and has shared another mask key than its own, needs all others to tell
    what they have in common with it; so none of them may vanish once they have uploaded.
    """
    found = moments(protocol)
    if plan.tampered and plan.vanish in (hostile_rounds.CHECKS, "masked_input"):
        return found[: found.index("masked_input") + 1]
    return found


def one_hostile_device(generator, seed):
    """Let one device do what it likes, beside dropouts as planned: nobody else may be missing."""
    case, devices = str(generator.choice(list(CASES))), int(generator.integers(10, 15))
    protocol, me = _made(case, devices), int(generator.integers(devices))
    plan = _one_device(generator, protocol, me, str(generator.choice(TRICKS)), seed)
    return _beside_dropouts(generator, "one hostile device", case, protocol, plan, 0.2)


def hostile_on_large_rings(generator, seed):
    """Let one device do what it likes where the program chooses degree and threshold."""
    name = str(generator.choice(["secagg-graph", "cohort"]))
    devices = int(generator.choice([20, 30, 40]))
    protocol, me = make(name, devices, dropout=0.3, alpha=0.5), int(generator.integers(devices))
    plan = _one_device(generator, protocol, me, str(generator.choice(TRICKS)), seed)
    found = _beside_dropouts(generator, "hostile on large rings", name, protocol, plan, 0.3)
    if not found.accepted:
        # A ring may be stuck, as seldom as was asked for.
        found.failed, found.broken = found.broken, []
    found.chance = 2.0**-CORRECTNESS_BITS
    return found


def _beside_dropouts(generator, strategy, case, protocol, plan, rate):
    """Play a plan with as many dropouts as are planned, and as leave two answers to spare."""
    devices, before = protocol.parameters.devices, _before(plan, protocol)
    others = [id for id in range(devices) if id not in plan.hostile]
    count = min(_part(rate, devices), to_spare(protocol)) if generator.integers(3) else 0
    # Either all at one moment, or each at its own.
    together = str(generator.choice(before))
    apart = bool(generator.integers(2))
    gone = {
        id: str(generator.choice(before)) if apart else together
        for id in generator.permutation(others)[:count].tolist()
    }
    outcome = play(protocol, plan, dropouts=gone)
    return _finding(strategy, case, outcome, _honest_lost(outcome))


def removed_devices(generator, seed):
    """Let one device spoil its rows to those that share a victim's cohorts, or its links."""
    case = str(generator.choice(["cohort", "secagg-graph"]))
    devices = 20
    protocol = _made(case, devices, alpha=0.4, min_cohort=1)
    victim, me = 0, devices - 1

    def mates(server):
        order = server._links.order.tolist()
        place, reach = order.index(victim), 7
        near = [order[(place + k) % len(order)] for k in range(-reach, reach + 1) if k]
        return [id for id in near if id not in (victim, me)]

    plan = Plan(hostile=(me,), spoil="foreign", seed=seed)

    def choose(server):
        plan.victims = tuple(mates(server))
        return {}

    outcome = play(protocol, plan, choose=choose)
    return _finding("removed devices", case, outcome, _honest_lost(outcome))


# Departures


def early_leavers(generator, seed):
    """Let honest devices vanish while colluders stay, as many as are planned, or far more."""
    heavy, above = generator.random() < 0.2, bool(generator.integers(2))
    protocol, colluding = ring_for_leavers(heavy)
    planned = _part(protocol.parameters.dropout, protocol.parameters.devices)
    count = above_plan(protocol, colluding) if above else planned
    phase = str(generator.choice(["advertise_keys", "share_keys", "masked_input"]))
    careless = above and bool(generator.integers(2))
    outcome = leave(generator, protocol, colluding, count, phase, careless, seed)
    return _finding(
        *("early leavers", "secagg-graph", outcome),
        *(ring_kept(outcome), "" if above or outcome.accepted else f"it ended: {outcome.error}"),
        chance=limit_of(protocol),
    )


def ring_for_leavers(heavy=False):
    """Return a protocol whose rounds can end when many more are gone than planned, and its A.

    With many that collude, they weigh more on a ring that lacks those who advertised no keys.
    """
    devices, gamma, rate = (100, 0.2, 0.3) if heavy else (60, 0.1, 0.2)
    options = {"security_bits": BITS, "correctness_bits": CORRECTNESS_BITS}
    protocol = make("secagg-graph", devices, 12, dropout=rate, gamma=gamma, **options)
    return protocol, _part(gamma, devices)


def above_plan(protocol, colluding):
    """Return how many must be gone for the bound to be eight times what was promised."""
    devices, degree = protocol.parameters.devices, protocol.topology.degree
    limit = limit_of(protocol)
    return next(
        count
        for count in range(devices)
        if ring_bound(devices, colluding, count, degree, protocol.topology.threshold) > 8 * limit
    )


def leave(generator, protocol, colluding, count, phase, careless, seed):
    """Play a round in which chance says who colludes, and who of the others leaves."""
    ids = generator.permutation(protocol.parameters.devices).tolist()
    plan = Plan(hostile=tuple(ids[:colluding]), seed=seed)
    gone = dict.fromkeys(ids[colluding : colluding + count], phase)
    return play(protocol, plan, dropouts=gone, careless=careless)


def ring_kept(outcome, expelled=0):
    """Return in words what is wrong with how likely an accepted round is said to fail."""
    if not outcome.accepted:
        return ""
    protocol, ring = outcome.protocol, len(hostile_rounds.ring_of(outcome) or [])
    colluding = len(outcome.plan.hostile)
    absent = ring - len({*outcome.survivors} | {*outcome.plan.hostile}) - expelled
    links = outcome.server._links
    degree = protocol.topology.degree
    true = ring_bound(ring, colluding, absent, degree, links.threshold, expelled)
    promised = limit_of(protocol)
    if true > ROUNDED * promised:
        return f"a round was accepted that fails with {_bits(true)}; promised was {_bits(promised)}"
    recorded = protocol.promise_failure(protocol.outcome(outcome.server))
    if true > ROUNDED * Fraction(recorded):
        return f"recorded is {_bits(Fraction(recorded))}, and it is {_bits(true)}"
    return ""


def smallest_cohorts(devices, dim, **options):
    """Return the protocol with the smallest cohorts that the program accepts."""
    for size in range(2, devices + 1):
        try:
            return make("cohort", devices, dim, alpha=size / devices, **options)
        except UsageError:
            continue
    raise AssertionError("no cohorts at all are accepted")


def chosen_departures(generator, seed):
    """Once the ring is known, let the honest of the cohort with most colluders leave."""
    protocol = cohorts_of_all()
    floor = protocol.parameters.min_cohort
    keep = floor - 1 + int(generator.integers(2) * generator.integers(10))
    outcome = depart(generator, protocol, keep, False, seed)
    return _finding("chosen departures", "cohort", outcome, floor_kept(outcome), chance=2.0**-BITS)


def cohorts_of_all():
    """Return a protocol with cohorts in which all are linked: only their floor can be missed."""
    devices = 31
    options = {"degree": devices - 1, "security_bits": BITS, "correctness_bits": 4}
    return smallest_cohorts(devices, devices, min_cohort=3, dropout=0.1, gamma=0.2, **options)


def depart(generator, protocol, keep, careless, seed):
    """Play a round in which all honest devices but some leave the cohort with most colluders."""
    devices, size = protocol.parameters.devices, protocol.cohort_size
    ids = generator.permutation(devices).tolist()
    colluding = {*ids[: _part(protocol.parameters.gamma, devices)]}

    def choose(server):
        order = server._links.order.tolist()
        cohorts = [[order[(s + k) % devices] for k in range(size)] for s in range(devices)]
        honest = min(([id for id in cohort if id not in colluding] for cohort in cohorts), key=len)
        return dict.fromkeys(honest[keep:], "masked_input")

    return play(
        protocol, Plan(hostile=tuple(colluding), seed=seed), choose=choose, careless=careless
    )


def floor_kept(outcome):
    """Return in words whether a round was accepted, or not, that should not, or should."""
    there = {*range(outcome.protocol.parameters.devices)} - {*outcome.dropouts}
    least = least_survivors(outcome)
    fewest = min(len(one & there) for one in cohorts(outcome))
    if outcome.accepted and fewest < least:
        return f"a cohort with {fewest} survivors was accepted, and {least} are needed"
    enough = len(there) >= outcome.protocol.topology.threshold + 2
    if not outcome.accepted and fewest >= least and enough:
        return f"a round ended of which all cohorts have survivors enough: {outcome.error}"
    return ""


def cohorts(outcome):
    """Return who is in each cohort."""
    order = hostile_rounds.ring_of(outcome) or []
    size = outcome.protocol.cohort_size
    return [{order[(s + k) % len(order)] for k in range(size)} for s in range(len(order))]


def least_survivors(outcome):
    """Return how many must survive of a cohort: its floor, and as many as may collude."""
    parameters, size = outcome.protocol.parameters, outcome.protocol.cohort_size
    devices, colluding = parameters.devices, len(outcome.plan.hostile)
    failure = Fraction(1, 2**parameters.security_bits)
    return int(parameters.min_cohort + most_colluding(devices, colluding, size, failure))


def cut_cohorts(generator, seed):
    """Once the ring is known, let those leave that link a victim with others of its cohorts."""
    devices, gamma, floor = 60, 0.1, int(generator.integers(2, 4))
    options = {"dropout": 0.3, "gamma": gamma, "min_cohort": floor, "security_bits": BITS}
    alpha = float(generator.choice([0.35, 0.4, 0.45]))
    protocol = make("cohort", devices, devices, alpha=alpha, correctness_bits=4, **options)
    size = protocol.cohort_size
    colluding = {*generator.permutation(devices)[: _part(gamma, devices)].tolist()}
    reach = protocol.topology.degree // 2
    least = floor + most_colluding(devices, len(colluding), size, Fraction(1, 2**BITS))
    # As many as leave every cohort what devices insist on, and secrets as many holders as planned.
    most = min(size - least, _part(0.3, devices))

    def choose(server):
        order = server._links.order.tolist()
        found: list[list[int]] = []
        for place, victim in enumerate(order):
            behind = [order[(place + k) % devices] for k in range(1, reach + 1)]
            if victim not in colluding:
                found.append([id for id in behind if id not in colluding])
        return dict.fromkeys(min(found, key=len)[:most], "masked_input")

    outcome = play(protocol, Plan(hostile=tuple(colluding), seed=seed), choose=choose)
    return _finding("cut cohorts", "cohort", outcome, chance=2.0**-BITS)


# The order of the ring


def ground_keys(generator, seed):
    """Let the last device try keys until the ring suits it, knowing what all others know."""
    devices, gamma, tries = 40, 0.3, 1 << 8
    protocol = make("cohort", devices, 80, alpha=0.3, dropout=0.0, gamma=gamma)
    colluding = tuple(range(devices - _part(gamma, devices), devices))
    size = protocol.cohort_size
    grinders: list[Grinder] = []

    def worst(order):
        """Return how many honest devices the cohort has that has the fewest."""
        flags = np.array([id not in colluding for id in order] * 2, np.int64)
        sums = np.concatenate([[0], np.cumsum(flags)])
        return int((sums[size : size + devices] - sums[:devices]).min())

    def wrap(id, player, scene):
        if id != colluding[-1]:
            return player
        grinders.append(Grinder(player, scene, protocol, worst, tries))
        return grinders[-1]

    outcome = play(protocol, Plan(hostile=colluding, seed=seed), wrap=wrap)
    found = _finding("ground keys", "cohort", outcome, chance=2.0**-BITS)
    order = hostile_rounds.ring_of(outcome)
    if order is not None and order == grinders[0].foreseen:
        # One order of 40! does by chance.
        found.broken.append("the order of the ring was known before the last device had chosen")
    if outcome.accepted:
        # Any floor rests on this: by chance, a cohort seldom has more colluders than so many.
        most = size - worst(order or [])
        allowed = most_colluding(devices, len(colluding), size, Fraction(1, 2**BITS))
        if most > allowed:
            found.failed.append(f"a cohort of {size} holds {most} colluders, not {allowed}")
    return found


class Grinder(Wrapped):
    """A device that tries keys, and knows how the ring follows from them and what it is told.

    Attributes
    ----------
    foreseen : list of int
        The order that it is out for.
    """

    def __init__(self, inner, scene, protocol, worst, tries):
        super().__init__(inner)
        self._scene, self._protocol, self._worst, self._tries = scene, protocol, worst, tries
        self.foreseen: list[int] = []

    def send_advertise_keys(self):
        from hpcfl.algorithms.aggregation.topology import ring_order

        inner = self._inner
        own = getattr(inner, "_inner", inner)
        public = {
            id: advertised(device) for id, device in self._scene.devices.items() if id != own.id
        }
        context = self._protocol.round_context(own._round)
        count = self._protocol.parameters.devices
        # The server colludes: if it has drawn its nonce, the device knows it.
        nonce = getattr(self._scene.server, "nonce", None) or bytes(16)
        best = None
        for _ in range(self._tries):
            payload = inner.send_advertise_keys()
            keys = {**public, own.id: payload.tobytes()}
            order = ring_order(count, keys, nonce, context)
            rank = self._worst(order.tolist())
            if best is None or rank < best[0]:
                best = rank, order.tolist(), payload, own._transport_pair, own._mask_pair
        _, self.foreseen, payload, own._transport_pair, own._mask_pair = best
        return payload


# Noise


def few_noises(generator, seed):
    """Let devices vanish, so that less noise is in a sum than was promised."""
    case = str(generator.choice(["secagg", "secagg-graph", "cohort"]))
    gone = int(generator.integers(0, 6))
    outcome = leave_noise(case, gone, bool(generator.integers(2)), seed)
    ended = "" if outcome.accepted or gone > 2 else f"the round ended: {outcome.error}"
    return _finding("few noises", case, outcome, ended)


def leave_noise(case, gone, careless, seed):
    """Play a round with noise, in which so many of a sum's honest devices leave."""
    devices, gamma = 12, 0.17
    protocol = _made(case, devices, dropout=0.2, gamma=gamma, alpha=0.75)
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    colluding = tuple(range(_part(gamma, devices)))

    def choose(server):
        order = hostile_rounds.order_of(server) or [*range(devices)]
        count = len(order)
        size = protocol.cohort_size if case == "cohort" else count
        together = [[order[(s + k) % count] for k in range(size)] for s in range(count)]
        honest = min(([id for id in one if id not in colluding] for one in together), key=len)
        return dict.fromkeys(honest[:gone], "masked_input")

    return play(protocol, Plan(hostile=colluding, seed=seed), choose=choose, careless=careless)


def drawn_from_many(generator, seed):
    """Draw the devices of a round from many, with as many colluders as chance gives, or may."""
    protocol, among = sampled()
    devices, population = protocol.parameters.devices, len(MANY)
    count = sum(MANY[id] for id in generator.permutation(population)[:devices].tolist())
    # It says itself how likely it is that as many collude as open a secret.
    chance = Fraction(1, 2**BITS) + sum(among[protocol.parameters.threshold :])
    if generator.integers(2):
        # As many as a round has with a probability that is not left out of account.
        count, chance = exceeded_seldom(among, Fraction(1, 2**BITS)), Fraction(0)
    outcome = sample(generator, protocol, count, int(generator.integers(2)), seed)
    ended = "" if outcome.accepted else f"the round ended: {outcome.error}"
    return _finding("drawn from many", "secagg", outcome, ended, chance=chance)


# Which devices of a population collude.
MANY = [id < 14 for id in range(120)]


def sampled():
    """Return a protocol with noise for devices of a population, and how many of them collude."""
    devices, population = 12, len(MANY)
    options = {"gamma": 0.12, "population": population, "security_bits": BITS}
    protocol = make("secagg", devices, dropout=0.0, **options)
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    return protocol, drawn(population, sum(MANY), devices)


def sample(generator, protocol, count, gone, seed):
    """Play a round of which so many collude; one device more than are planned may be gone."""
    ids = generator.permutation(protocol.parameters.devices).tolist()
    leaving = dict.fromkeys(ids[count : count + gone], "masked_input")
    return play(protocol, Plan(hostile=tuple(ids[:count]), seed=seed), dropouts=leaving)


# Dealers that are framed


def framed_dealers(generator, seed):
    """Let colluders answer falsely about honest dealers of their choice, so that these are out."""
    case = str(generator.choice(["secagg", "secagg-graph", "secagg-graph", "cohort"]))
    protocol = frameable(case)
    cut = bool(generator.integers(2)) and case != "secagg"
    count = 0 if cut else 1 + int(generator.integers(5))
    # Either nobody drops out, or as many as leave it at one more than are planned.
    gone = at_most_gone(protocol, count) if count and generator.integers(2) else 0
    answer = str(generator.choice(list(hostile_rounds.ANSWERS)))
    outcome = frame(generator, protocol, count, gone, answer, seed)
    out = len(missing_honest(outcome)) if outcome.accepted else 0
    kept = "" if case == "secagg" else ring_kept(outcome, out)
    chance = Fraction(0) if case == "secagg" else limit_of(protocol)
    return _finding("framed dealers", case, outcome, kept, chance=chance)


def at_most_gone(protocol, framed):
    """Return how many may drop out beside so many framed, with one more than planned gone."""
    parameters = protocol.parameters
    return max(0, _part(parameters.dropout, parameters.devices) + 1 - framed)


def frameable(case):
    """Return a protocol with noise, of which a few honest devices can be cut off."""
    if case == "secagg":
        protocol = make(case, 14, dropout=0.2, gamma=0.22)
    else:
        options = {"security_bits": BITS, "correctness_bits": CORRECTNESS_BITS, "alpha": 0.3}
        protocol = make(case, 70, 70, dropout=0.3, gamma=0.15, **options)
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    return protocol


def frame(generator, protocol, count, gone, answer, seed, careless=False):
    """Play a round in which colluders frame so many dealers, or for 0 those that cut a part off.

    Others of the honest, as many as are to be gone, drop out by chance.
    """
    devices = protocol.parameters.devices
    ids = generator.permutation(devices).tolist()
    colluding = {*ids[: _part(protocol.parameters.gamma, devices)]}
    plan = Plan(hostile=tuple(colluding), answer=answer, seed=seed)

    def choose(server):
        order = hostile_rounds.order_of(server) or ids
        if count:
            honest = [id for id in order if id not in colluding]
            plan.about = tuple(generator.choice(honest, count, replace=False).tolist())
        else:
            plan.about = tuple(cheapest_cut(protocol, order, colluding))
        others = [id for id in ids if id not in colluding and id not in plan.about]
        return dict.fromkeys(others[:gone], "masked_input")

    return play(protocol, plan, choose=choose, careless=careless)


def cheapest_cut(protocol, order, colluding):
    """Return the fewest honest devices without which some of the others are on their own."""
    count, half = len(order), protocol.topology.degree // 2

    def gap(place):
        return {order[(place + k) % count] for k in range(half)} - colluding

    gaps = [gap(place) for place in range(count)]
    if protocol.name == "cohort":
        # Of a stretch of the ring, one gap cuts off who is at its end.
        return min(gaps, key=len)
    # Those between two gaps are to have holders enough, among themselves.
    least = protocol.topology.threshold + 2
    pairs = (
        gaps[first] | gaps[second % count]
        for first in range(count)
        for second in range(first + half + least, first + count - half - least + 1)
    )
    return min(pairs, key=len)


def limit_of(protocol):
    """Return how often the promises of a ring may fail, by what is printed and was asked for."""
    return max(printed_ring(protocol), Fraction(1, 2**protocol.parameters.security_bits))


# What is said before


def printed_numbers(generator, seed):
    """Compute what is printed before a round for the worst that it reckons with."""
    what = str(generator.choice(list(PRINTED)))
    found = Finding("printed numbers", what, False)
    try:
        found.broken = [one for one in PRINTED[what](generator) if one]
        found.accepted = True
    except UsageError:
        # Parameters that cannot be kept are refused.
        pass
    return found


@dataclass
class Reckoned:
    """What a round is planned with, and the worst of it.

    Attributes
    ----------
    options : dict
        Of the protocol.
    devices, population, colluding, gone : int
        Numbers N, n, A of the population, and most that drop out.
    """

    options: dict[str, Any]
    devices: int
    population: int
    colluding: int
    gone: int

    @classmethod
    def draw(cls, generator, **more):
        """Return one of many plans."""
        devices = int(generator.integers(12, 121))
        population = devices * int(generator.choice([1, 1, 3, 10]))
        gamma = float(generator.choice([0.05, 0.1, 0.2, 0.33]))
        rate = float(generator.choice([0.0, 0.1, 0.3, 0.45]))
        model = str(generator.choice(["exact", "bernoulli"]))
        bits = int(generator.choice([10, 20, 40]))
        options = {
            "gamma": gamma,
            "dropout": rate,
            "dropout_model": model,
            "population": population,
            "security_bits": bits,
            "correctness_bits": CORRECTNESS_BITS,
        } | more
        gone = min(_part(rate, devices) + 1, devices - 1)
        if model == "bernoulli" and rate > 0:
            gone = exceeded_seldom(by_chance(devices, rate), Fraction(1, 2**CORRECTNESS_BITS))
        return cls(options, devices, population, _part(gamma, population), gone)

    @property
    def failure(self):
        return Fraction(1, 2 ** self.options["security_bits"])

    def among(self, size):
        """Return the distribution of the colluders among some devices of a round."""
        return drawn(self.population, self.colluding, size)

    def made(self, name, dim=200):
        return make(name, self.devices, dim, **self.options)


def _printed_ring(generator):
    """Compare what is printed of a ring."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg-graph")
    degree, threshold = protocol.topology.degree, protocol.topology.threshold
    devices, gone, half = plan.devices, plan.gone, degree // 2
    revealed, split, stuck = (_power(one) for one in _ring_numbers(protocol))
    if degree == devices - 1:
        true = sum(plan.among(devices)[threshold:])
        return [_too_small("revealed", revealed, true)]
    # With the honest device itself taken out of all, its neighbours are drawn from the others.
    honest = devices - (plan.colluding if plan.population == devices else 0)
    true = honest * sum(drawn(plan.population - 1, plan.colluding, degree)[threshold:])
    # One may be expelled besides, by who knows the ring.
    apart = devices * sum(
        chance * sum(drawn(devices, min(colluders + gone, devices), half)[half - 1 :])
        for colluders, chance in enumerate(plan.among(devices))
    )
    # If no more drop out than are reckoned with: of a device that has, itself.
    left = drawn(devices - 1, devices - max(gone, 1), degree)
    least = int(_said(r"fewer than (\d+) neighbours left", protocol, str(threshold)))
    return [
        _too_small("revealed", revealed, true),
        _too_small("not all linked", split, apart),
        _too_small("cannot end", stuck, devices * sum(left[:least])),
        "too likely to fail" if true + apart > ROUNDED * plan.failure else "",
    ]


def _printed_threshold(generator):
    """Compare how likely a secret is opened where all are linked with all."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg")
    found = _said(rf"collude(?:,? [^,]* draws,)? but for a probability of {POWER}", protocol, "0")
    true = sum(plan.among(plan.devices)[protocol.topology.threshold :])
    return [_too_small("revealed", _power(found), true)]


def _printed_noise(generator):
    """Compare whose noise is promised."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg")
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    colluding = exceeded_seldom(plan.among(plan.devices), plan.failure)
    there = max(1, plan.devices - plan.gone - colluding)
    said = int(_said(r"the noise of at least (\d+) honest devices", protocol))
    return [f"the noise of {said} is promised, and {there} may be there" if said > there else ""]


def _printed_floor(generator):
    """Compare how many survivors of a cohort devices insist on."""
    floor = int(generator.integers(2, 6))
    plan = Reckoned.draw(generator, min_cohort=floor)
    plan.options |= {"alpha": float(generator.uniform(0.3, 1)), "correctness_bits": 2}
    protocol = plan.made("cohort")
    among = plan.among(protocol.cohort_size)
    needed = floor + exceeded_seldom(among, plan.failure / plan.devices)
    said = int(_said(r"at least (\d+) survive, or devices refuse", protocol))
    exceeded = _power(_said(rf"whoever drops out, but for a probability of {POWER}", protocol))
    true = plan.devices * sum(among[said - floor + 1 :])
    return [
        f"{said} survivors are insisted on, and {needed} are needed" if said < needed else "",
        _too_small("below the floor", exceeded, true),
    ]


def _printed_cohort(generator):
    """Compare how likely a cohort is left with fewer than two, where no floor is promised."""
    plan = Reckoned.draw(generator)
    plan.options["alpha"] = float(generator.uniform(0.1, 0.6))
    protocol = plan.made("cohort")
    size, devices = protocol.cohort_size, plan.devices
    true = Fraction(0)
    for colluders, chance in enumerate(plan.among(devices)):
        honest = max(0, devices - colluders - plan.gone)
        true += chance * min(Fraction(1), devices * sum(drawn(devices, honest, size)[:2]))
    pattern = r"fewer than (?:2|two)[^(]*?probability of (?:up to )?(\d[0-9.e+-]*)"
    said = Fraction(_said(pattern, protocol))
    return [_too_small("fewer than 2", said, true)]


def _refused_active(generator):
    """Ask for a round against a server that cheats, with more colluders than that bears."""
    plan = Reckoned.draw(generator, security="active")
    protocol = plan.made("secagg")
    borne = 2 * protocol.topology.threshold - plan.devices - 1
    most = exceeded_seldom(plan.among(plan.devices), plan.failure)
    return [f"{most} may collude in a round that bears {borne}" if most > borne else ""]


PRINTED: dict[str, Callable[[Generator], list[str]]] = {
    "ring": _printed_ring,
    "threshold": _printed_threshold,
    "noise": _printed_noise,
    "floor": _printed_floor,
    "cohort": _printed_cohort,
    "active": _refused_active,
}


def _said(pattern, protocol, otherwise=None):
    """Return what a protocol's promises say where a pattern has its group."""
    for one in protocol.promises():
        found = re.search(pattern, one.claim)
        if found is not None:
            return found[1]
    assert otherwise is not None, (pattern, protocol.promises())
    return otherwise


def _too_small(what, said, true):
    # Floating-point numbers end somewhere.
    if min(true, 1) <= ROUNDED * said or true < Fraction(1, 2**300):
        return ""
    return f"{what}: printed is {_bits(said)}, and it is {_bits(true)}"


# What was sent before


def replays(generator, seed):
    """Let a device send what another, or it itself in another round, has sent."""
    case = str(generator.choice([case for case in CASES if "active" not in case]))
    devices = int(generator.integers(10, 14))
    protocol, me = _made(case, devices), int(generator.integers(devices))
    before = play(protocol, Plan(seed=seed), index=0)
    what = str(generator.choice(["send_advertise_keys", "send_share_keys", "send_unmask"]))
    other = (me + 1 + int(generator.integers(devices - 1))) % devices

    def wrap(id, player, scene):
        source = scene.devices[other] if generator.integers(2) else before.devices[me]
        return Replayer(player, source, what) if id == me else player

    outcome = play(protocol, Plan(hostile=(me,), seed=seed), index=1, wrap=wrap)
    return _finding("replays", case, outcome, _honest_lost(outcome))


class Replayer:
    """A device that sends again, in one step, what another device sends there."""

    def __init__(self, inner, source, what):
        self._inner, self._source, self._what = inner, source, what

    def __getattr__(self, name):
        if name != self._what:
            return getattr(self._inner, name)
        if name == "send_share_keys":
            return self._rows
        if name == "send_advertise_keys":
            self._inner.send_advertise_keys()
            return lambda: np.frombuffer(advertised(self._source), np.uint8)
        return lambda: np.roll(self._inner.send_unmask(), 4)

    def _rows(self):
        receivers, rows = self._inner.send_share_keys()
        return receivers, np.roll(rows, 1, axis=0)


def old_endorsements(generator, seed):
    """Let a server that cheats play a round twice, to have two lists of survivors endorsed."""
    case = str(generator.choice([case for case in CASES if "active" in case]))
    protocol = _made(case, 10)
    enrolled = play(protocol, Plan(seed=seed), index=0).identities
    # As they are in a device that is set back to where it was.
    before = {id: copy.copy(identity) for id, identity in enrolled.items()}
    first, tags = _endorsed(protocol, enrolled, seed)
    again, _ = _endorsed(protocol, enrolled, seed + 1)
    later, others = _endorsed(protocol, before, seed + 1)
    found = _finding("old endorsements", case, first)
    if not later.accepted:
        found.broken.append(f"a round ended: {later.error}")
    if again.accepted:
        found.broken.append("devices took part in a round twice")
    if not tags or any({*tags[id]} & {*others.get(id, [])} for id in tags):
        found.broken.append("what was endorsed in one round passes for another")
    return found


def _endorsed(protocol, identities, seed):
    """Play round 1, and return the tags by which each device has endorsed its survivors."""
    tags: dict[int, list[bytes]] = {}

    def wrap(id, player, scene):
        send = player.send_consistency_check

        def recorded():
            payload = send()
            raw = payload.tobytes()
            tags[id] = [raw[start : start + 16] for start in range(0, len(raw), 16)]
            return payload

        player.send_consistency_check = recorded
        return player

    outcome = play(protocol, Plan(seed=seed), index=1, wrap=wrap, identities=identities)
    return outcome, tags


# What is uploaded, and what is made of it


def bad_values(generator, seed):
    """Let a device's vector hold what is not a number, or is infinite."""
    case = str(generator.choice(list(CASES)))
    devices = int(generator.integers(10, 14))
    me = int(generator.integers(devices))
    value = float(generator.choice([np.nan, np.inf, -np.inf]))

    def wrap(id, player, scene):
        return BadValues(player, value) if id == me else player

    outcome = play(_made(case, devices), Plan(hostile=(me,), seed=seed), wrap=wrap)
    used = "its vector was used" if outcome.accepted and me in outcome.survivors else ""
    return _finding("bad values", case, outcome, used, _honest_lost(outcome))


class BadValues(Wrapped):
    """A device whose vector is spoiled."""

    def __init__(self, inner, value):
        super().__init__(inner)
        self._value = value

    def send_masked_input(self, vector):
        spoiled = vector.copy()
        spoiled[:] = self._value
        return self._inner.send_masked_input(spoiled)


def saved_sums(generator, seed):
    """Let others drop out than are planned: sum and mean are those of who is there."""
    case, devices = str(generator.choice(list(CASES))), int(generator.integers(10, 15))
    weights = generator.uniform(0.5, 1.5, devices)
    protocol = _made(case, devices, weights=weights / weights.sum(), levels=2**20)
    ids, count = generator.permutation(devices).tolist(), int(generator.integers(0, 4))
    spare = min(count, to_spare(protocol))
    outcome = play(protocol, Plan(seed=seed), dropouts=dict.fromkeys(ids[:spare], "masked_input"))
    found = _finding("saved sums", case, outcome)
    if outcome.accepted:
        found.broken += wrong_mean(outcome)
    else:
        found.broken.append(f"the round ended: {outcome.error}")
    return found


def wrong_mean(outcome):
    """Return how the sum and the mean that are saved differ from those of the survivors."""
    protocol = outcome.protocol
    parameters = protocol.parameters
    total, weight = np.zeros((2, parameters.dim))
    for id in outcome.survivors:
        where = outcome.devices[id].sent()
        total[where] += parameters.weight(id) * outcome.vectors[id][where]
        weight[where] += parameters.weight(id)
    survived = sum(parameters.weight(id) for id in outcome.survivors)
    if protocol.name == "sparse":
        # An estimate: each coordinate is sent with a probability.
        total, weight = total / parameters.selection_probability, np.full_like(weight, survived)
    there = weight > 0
    mean = total[there] / weight[there]
    if hasattr(protocol, "aggregate"):
        saved = protocol.aggregate(outcome.server)
        pairs = [("sum", saved.sum, survived * mean), ("mean", saved.mean, mean)]
    else:
        pairs = [("sum", protocol.decode(outcome.server.total), survived * mean)]
    return [
        f"the {name} that is saved is wrong by up to {np.abs(found[there] - true).max():.3g}"
        for name, found, true in pairs
        if not np.allclose(found[there], true, rtol=0, atol=1e-3)
    ]


STRATEGIES: dict[str, Callable[[Generator, int], Finding]] = {
    strategy.__name__: strategy
    for strategy in (
        *(one_hostile_device, hostile_on_large_rings, removed_devices, framed_dealers),
        *(early_leavers, chosen_departures, cut_cohorts, ground_keys),
        *(few_noises, drawn_from_many, printed_numbers),
        *(replays, old_endorsements, bad_values, saved_sums),
    )
}
# Of a hundred rounds; those with many devices take longest.
WEIGHTS = (36, 6, 4, 4, 4, 8, 3, 2, 8, 6, 7, 4, 2, 4, 2)


# What is printed, and what it should be


def _ring_numbers(protocol):
    """Return what is printed of a ring: revealed, not all linked, too few left to end well."""
    text = " ".join(one.claim for one in protocol.promises())
    found = re.search(
        rf"revealed with a probability of at most {POWER}, the honest are not all linked with "
        rf"{POWER},.*? with {POWER}",
        text,
    )
    assert found is not None, text
    return found[1], found[2], found[3]


def printed_ring(protocol):
    """Return what is printed as the probability that a ring's promises fail, both together."""
    revealed, split, _ = _ring_numbers(protocol)
    return _power(revealed) + _power(split)


def _power(text):
    return Fraction(0) if text == "0" else Fraction(2 ** float(text.removeprefix("2^")))


def _bits(chance):
    if not chance:
        return "0"
    return f"2^{math.log2(chance.numerator) - math.log2(chance.denominator):.1f}"


@lru_cache(maxsize=512)
def ring_bound(ring, colluding, absent, degree, threshold, expelled=0):
    """Return the bound of what happened: a secret is revealed, or the honest are split; exactly.

    Parameters
    ----------
    ring, colluding : int
        Numbers of devices on the ring, and of those among them that collude.
    absent : int
        How many others are gone, wherever chance has put them.
    degree, threshold : int
        The ring's.
    expelled : int
        How many more are gone that were chosen with the ring known.
    """
    degree = min(degree, ring - 1)
    revealed = sum(drawn(ring - 1, colluding, degree)[threshold:], Fraction(0))
    if degree == ring - 1:
        return min(Fraction(1), revealed)
    half = degree // 2
    gone = drawn(ring, min(ring, colluding + absent), half)
    split = sum(gone[max(0, half - expelled) :], Fraction(0))
    return min(Fraction(1), (ring - colluding) * revealed + ring * split)


@lru_cache(maxsize=2048)
def _drawn(whole, marked, size):
    ways = comb(whole, size)
    return tuple(
        Fraction(comb(marked, c) * comb(whole - marked, size - c), ways) for c in range(size + 1)
    )


def drawn(whole, marked, size):
    """Return with what probability 0, 1, ... of some devices that chance has drawn are marked."""
    return [*_drawn(whole, marked, size)]


def by_chance(count, rate):
    """Return with what probability 0, 1, ... of some devices do what each does with a rate."""
    each = Fraction(repr(rate)) if isinstance(rate, float) else rate
    return [comb(count, k) * each**k * (1 - each) ** (count - k) for k in range(count + 1)]


def exceeded_seldom(chances, failure):
    """Return the least number that is exceeded with at most a probability."""
    beyond = Fraction(0)
    for count in range(len(chances) - 1, 0, -1):
        beyond += chances[count]
        if beyond > failure:
            return count
    return 0


def most_colluding(devices, colluding, size, failure):
    """Return the most colluders of any cohort, but for a probability; exactly."""
    return exceeded_seldom(drawn(devices, colluding, size), failure / devices)


def at_least(failures, chances):
    """Return the probability of so many failures, where each has its chance, on its own."""
    # Of 0, 1, ... and of `failures` or more.
    likely = np.zeros(failures + 1)
    likely[0] = 1.0
    for chance in chances:
        moved = likely * chance
        likely -= moved
        likely[1:] += moved[:-1]
        likely[-1] += moved[-1]
    return float(likely[-1])


def too_many(failures, chances, alarm=ALARM):
    """Return whether chance gives so many failures with less than a probability."""
    return failures > 0 and at_least(failures, chances) < alarm


def run(rounds, seed):
    """Return what was found in so many rounds."""
    generator = np.random.default_rng(seed)
    names, weights = list(STRATEGIES), np.array(WEIGHTS) / sum(WEIGHTS)
    # Each strategy at least once, however few rounds there are.
    chosen = [*names, *generator.choice(names, max(0, rounds - len(names)), p=weights).tolist()]
    return [STRATEGIES[name](generator, seed * 10**6 + k) for k, name in enumerate(chosen[:rounds])]


def alarming(findings):
    """Return the rounds with what must not be, and those of promises that failed too often."""
    found = [one for one in findings if one.broken]
    for strategy in dict.fromkeys(one.strategy for one in findings):
        rows = [one for one in findings if one.strategy == strategy]
        failed = [one for one in rows if one.failed]
        if too_many(len(failed), [one.chance for one in rows]):
            found += [one for one in failed if not one.broken]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    findings = run(arguments.rounds, arguments.seed)
    columns = ("rounds", "accepted", "broken", "failed", "may fail")
    print(f"{'strategy':<24}" + "".join(f"{name:>10}" for name in columns))
    for strategy in dict.fromkeys(one.strategy for one in findings):
        rows = [one for one in findings if one.strategy == strategy]
        accepted, broken = sum(one.accepted for one in rows), sum(bool(one.broken) for one in rows)
        failed, expected = sum(bool(one.failed) for one in rows), sum(one.chance for one in rows)
        print(
            f"{strategy:<24}{len(rows):>10}{accepted:>10}{broken:>10}{failed:>10}{expected:>10.3f}"
        )
    found = alarming(findings)
    for one in found[:20]:
        print(f"{one.strategy}, {one.case}: {'; '.join(one.broken + one.failed)}"[:300])
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
