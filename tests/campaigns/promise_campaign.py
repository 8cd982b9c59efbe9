"""Rounds under attack: whatever was promised of a round that was accepted must hold of it.

    python tests/campaigns/promise_campaign.py --rounds 10000 --seed 1

Every round is one of `STRATEGIES`, over all protocols, with an adversary that chooses its victims
after it has seen what there is to see. What the protocol promises is recomputed from what happened,
by code of its own, and every probability exactly, with fractions.

What must not be at all (a wrong sum, an honest device made to leave, a number that is promised and
too small, a round that is accepted although what was promised is out of reach) is counted as
broken, and one such round is one too many. What is promised but for a probability may fail as often
as it says: with security bits that are chosen small, so that failures can be seen at all, their
number is compared with its exact distribution, and is too large if chance gives as many with a
probability below `ALARM`, for each strategy. So of 1,000 campaigns of a program without a flaw, one
or two raise an alarm.

Each strategy says in its first line what it does, and there is a test of the suite,
`test_promises_hold.py`, that fails when what withstands it is taken away.
"""

import argparse
import copy
import sys
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import hostile_rounds
import numpy as np
from exact_numbers import (
    CORRECTNESS_BITS,
    NUMBERS,
    ROUNDED,
    drawn,
    exceeded_seldom,
    in_bits,
    limit_of,
    most_colluding,
    part_of,
    ring_bound,
)
from hostile_rounds import (
    CHECKS,
    Plan,
    Wrapped,
    advertised,
    make,
    missing_honest,
    moments,
    order_of,
    play,
    violations,
)

from hpcfl.algorithms.aggregation.promises import failure_of
from hpcfl.algorithms.aggregation.topology import ring_order
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.errors import UsageError

# Each protocol that hides anything, and how it is run where little depends on it.
CASES = {
    "secagg": ("secagg", {}),
    "secagg --degree 6": ("secagg", {"degree": 6}),
    "secagg-graph": ("secagg-graph", {"degree": 8}),
    "sparse": ("sparse", {"alpha": 0.5}),
    "cohort": ("cohort", {"alpha": 0.5}),
    "common": ("common", {"alpha": 0.5}),
    "secagg --security active": ("secagg", {"security": "active"}),
    "sparse --security active": ("sparse", {"security": "active", "alpha": 0.5}),
}
# Thresholds of rings: with two neighbours gone, two holders more than that answer.
SMALL_THRESHOLDS = {6: 3, 8: 5}
# How often promises may fail here: 2 to the minus this.
BITS = 12
# With what probability a strategy may raise an alarm by chance.
ALARM = 1e-4


@dataclass
class Finding:
    """One round of the campaign."""

    strategy: str
    case: str
    accepted: bool  # the round ended with a sum
    broken: list[str] = field(default_factory=list)  # what is wrong and must not be
    failed: list[str] = field(default_factory=list)  # promised but for a probability, and not held
    chance: float = 0.0  # that probability, by the promise's own words, before the round is played


def made(case, devices, **options):
    name, fixed = CASES[case]
    protocol = make(name, devices, **{"dropout": 0.2, "gamma": 0.1, **fixed, **options})
    if protocol.topology.degree in SMALL_THRESHOLDS and "degree" in fixed:
        protocol.topology.threshold = SMALL_THRESHOLDS[protocol.topology.degree]
    return protocol


def with_noise(protocol):
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    return protocol


def chosen(generator, choices):
    """Return one of some names."""
    return str(generator.choice([*choices]))


def found_in(strategy, case, outcome, *broken, chance=0.0):
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


def ended(outcome):
    """Return in words that a round ended."""
    return "" if outcome.accepted else f"the round ended: {outcome.error}"


def honest_lost(outcome):
    """Return in words whether an attack has cost honest devices their round."""
    missing = missing_honest(outcome) if outcome.accepted else []
    return f"honest devices {missing} were lost" if missing else ended(outcome)


def to_spare(protocol):
    """Return how many holders of a secret can be gone, and two more than needed answer."""
    return int(protocol.topology.degree + 1 - protocol.topology.threshold - 2)


# One device that does what it likes

TRICKS = (
    *("spoil", "spoil", "contradict", "other", "lie", "complain", "misdeal", "answer", "answer"),
    *("misdeal answer", "spoil answer", "copy"),
)


def one_device(generator, protocol, me, seed):
    """Return what a device does, of what there is to choose from."""
    devices, trick = protocol.parameters.devices, chosen(generator, TRICKS)
    others = [id for id in range(devices) if id != me]

    def some():
        count = int(generator.choice([1, 2, devices // 2, devices - 1]))
        return tuple(generator.choice(others, count, replace=False).tolist())

    def one_of(names, wanted):
        return chosen(generator, names) if wanted in trick.split() else ""

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
        vanish=chosen(generator, ["", *moments(protocol)]) if generator.integers(2) else "",
        seed=seed,
    )


def one_hostile_device(generator, seed):
    """Let one device do what it likes, beside dropouts as planned: nobody else may be missing."""
    case, devices = chosen(generator, CASES), int(generator.integers(10, 15))
    protocol, me = made(case, devices), int(generator.integers(devices))
    plan = one_device(generator, protocol, me, seed)
    return beside_dropouts(generator, "one hostile device", case, protocol, plan)


def hostile_on_large_rings(generator, seed):
    """Let one device do what it likes where the program chooses degree and threshold."""
    name = chosen(generator, ["secagg-graph", "cohort"])
    devices = int(generator.choice([20, 30, 40]))
    protocol, me = make(name, devices, dropout=0.3, alpha=0.5), int(generator.integers(devices))
    plan = one_device(generator, protocol, me, seed)
    found = beside_dropouts(generator, "hostile on large rings", name, protocol, plan)
    if not found.accepted:
        # A ring may be stuck, as seldom as was asked for.
        found.failed, found.broken = found.broken, []
    found.chance = 2.0**-CORRECTNESS_BITS
    return found


def beside_dropouts(generator, strategy, case, protocol, plan):
    """Play a plan with as many dropouts as are planned, and as leave two answers to spare."""
    devices, before = protocol.parameters.devices, moments(protocol)
    if plan.tampered and plan.vanish in (CHECKS, "masked_input"):
        # A device that vanishes, and has shared another mask key than its own, needs all others to
        # tell what they have in common with it; so none of them may vanish after the upload.
        before = before[: before.index("masked_input") + 1]
    others = [id for id in range(devices) if id not in plan.hostile]
    planned = part_of(protocol.parameters.dropout, devices)
    count = min(planned, to_spare(protocol)) if generator.integers(3) else 0
    # Either all at one moment, or each at its own.
    together = chosen(generator, before)
    apart = bool(generator.integers(2))
    gone = {
        id: chosen(generator, before) if apart else together
        for id in generator.permutation(others)[:count].tolist()
    }
    outcome = play(protocol, plan, dropouts=gone)
    return found_in(strategy, case, outcome, honest_lost(outcome))


def several_liars(generator, seed):
    """Let as many of 41 devices be hostile as answers can tell apart: no honest one is lost."""
    case, rate = chosen(generator, AMONG_MANY), float(generator.choice([0.0, 0.1, 0.3]))
    name, options = AMONG_MANY[case]
    if case in FEW_NEIGHBOURS:
        rate = 0.3
    protocol = make(name, 41, dropout=rate, **options)
    code = getattr(protocol, "code", None)
    needed = protocol.topology.threshold if code is None else code.needed
    # Dropouts leave just enough answers where a code counts on them, or few neighbours.
    leaving = part_of(rate, 41) if code is None and case not in FEW_NEIGHBOURS else 0
    holders = 41 if case not in FEW_NEIGHBOURS else protocol.topology.degree + 1
    most = (holders - leaving - needed) // 2
    ids = generator.permutation(41).tolist()
    count = min(most, int(generator.integers(2, 11)))
    hostile, before = tuple(ids[:count]), moments(protocol)
    if code is not None:
        hostile_plan = one_holder
    else:
        hostile_plan = one_that_answers if case in FEW_NEIGHBOURS else one_of_several
    each = {id: hostile_plan(generator, protocol, id, seed) for id in hostile}
    gone = {id: chosen(generator, before) for id in ids[count : count + leaving]}
    plan = Plan(hostile=hostile, each=each, seed=seed)
    outcome = play(protocol, plan, dropouts=gone)
    return found_in("several liars", f"{case} {rate} {count}", outcome, honest_lost(outcome))


AMONG_MANY = CASES | {
    "lightsecagg": ("lightsecagg", {}),
    "committee": ("committee", {"committee": 41}),
    "secagg-graph": ("secagg-graph", {}),
}
del AMONG_MANY["secagg --degree 6"]
# They plan for one hostile neighbour that chooses about whom it answers falsely.
FEW_NEIGHBOURS = ("secagg-graph", "cohort")


def one_of_several(generator, protocol, me, seed):
    plan = one_device(generator, protocol, me, seed)
    # With another one that does not tell what the two have in common, it ends the round.
    return replace(plan, vanish="") if plan.tampered else plan


def one_that_answers(generator, protocol, me, seed):
    """Return what a device does that says of all shares that they are others, or none."""
    answer = chosen(generator, hostile_rounds.ANSWERS)
    return Plan((me,), answer=answer, about=tuple(range(41)), lie=bool(generator.integers(2)))


def one_holder(generator, protocol, me, seed):
    """Return what a device does that holds pieces: so many may be hostile as sums are wrong."""
    trick = chosen(generator, ("lie", "complain", "spoil", "vanish"))
    return Plan(
        hostile=(me,),
        lie=trick == "lie",
        complain=trick == "complain",
        spoil="garbled" if trick == "spoil" else "",
        victims=tuple(range(41)),
        vanish=protocol.steps[-2].phase if trick == "vanish" else "",
    )


def removed_devices(generator, seed):
    """Let one device spoil its rows to those that share a victim's cohorts, or its links."""
    case, devices = chosen(generator, ["cohort", "secagg-graph"]), 20
    victim, me = 0, devices - 1
    plan = Plan(hostile=(me,), spoil="foreign", seed=seed)

    def choose(server):
        order = order_of(server)
        place, reach = order.index(victim), 7
        near = [order[(place + k) % len(order)] for k in range(-reach, reach + 1) if k]
        plan.victims = tuple(id for id in near if id not in (victim, me))
        return {}

    outcome = play(made(case, devices, alpha=0.4, min_cohort=1), plan, choose=choose)
    return found_in("removed devices", case, outcome, honest_lost(outcome))


# Departures


def early_leavers(generator, seed):
    """Let honest devices vanish while colluders stay, as many as are planned, or far more."""
    heavy, above = generator.random() < 0.2, bool(generator.integers(2))
    protocol, colluding = ring_for_leavers(heavy)
    planned = part_of(protocol.parameters.dropout, protocol.parameters.devices)
    count = above_plan(protocol, colluding) if above else planned
    phase = chosen(generator, ["advertise_keys", "share_keys", "masked_input"])
    careless = above and bool(generator.integers(2))
    outcome = leave(generator, protocol, colluding, count, phase, careless, seed)
    wrong = (ring_kept(outcome), "" if above else ended(outcome))
    chance = limit_of(protocol)
    return found_in("early leavers", "secagg-graph", outcome, *wrong, chance=chance)


def ring_for_leavers(heavy=False):
    """Return a protocol whose rounds can end when many more are gone than planned, and its A.

    With many that collude, they weigh more on a ring that lacks those who advertised no keys.
    """
    devices, gamma, rate = (100, 0.2, 0.3) if heavy else (60, 0.1, 0.2)
    options = {"security_bits": BITS, "correctness_bits": CORRECTNESS_BITS}
    protocol = make("secagg-graph", devices, 12, dropout=rate, gamma=gamma, **options)
    return protocol, part_of(gamma, devices)


def above_plan(protocol, colluding):
    """Return how many must be gone for the bound to be eight times what was promised."""
    devices, ring = protocol.parameters.devices, protocol.topology
    limit = limit_of(protocol)
    return next(
        count
        for count in range(devices)
        if ring_bound(devices, colluding, count, ring.degree, ring.threshold) > 8 * limit
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
    protocol, ring = outcome.protocol, len(order_of(outcome.server) or [])
    colluding = {*outcome.plan.hostile}
    absent = ring - len({*outcome.survivors} | colluding) - expelled
    limits = protocol.topology.degree, outcome.server._links.threshold
    true = ring_bound(ring, len(colluding), absent, *limits, expelled)
    promised = limit_of(protocol)
    if true > ROUNDED * promised:
        return (
            f"a round was accepted that fails with {in_bits(true)}; promised was "
            f"{in_bits(promised)}"
        )
    recorded = Fraction(failure_of(protocol.promises(), protocol.outcome(outcome.server)))
    if true > ROUNDED * recorded:
        return f"recorded is {in_bits(recorded)}, and it is {in_bits(true)}"
    return ""


def chosen_departures(generator, seed):
    """Once the ring is known, let the honest of the cohort with most colluders leave."""
    protocol = cohorts_of_all()
    floor = protocol.parameters.min_cohort
    keep = floor - 1 + int(generator.integers(2) * generator.integers(10))
    outcome = depart(generator, protocol, keep, False, seed)
    return found_in("chosen departures", "cohort", outcome, floor_kept(outcome), chance=2.0**-BITS)


def cohorts_of_all():
    """Return a protocol with cohorts in which all are linked: only their floor can be missed.

    They are the smallest cohorts that the program accepts.
    """
    devices = 31
    options = {"degree": devices - 1, "security_bits": BITS, "correctness_bits": 4}
    options |= {"min_cohort": 3, "dropout": 0.1, "gamma": 0.2}
    for size in range(2, devices + 1):
        try:
            return make("cohort", devices, devices, alpha=size / devices, **options)
        except UsageError:
            continue
    raise AssertionError("no cohorts at all are accepted")


def cohorts_on(order, size):
    """Return who is in each cohort."""
    return [[order[(s + k) % len(order)] for k in range(size)] for s in range(len(order))]


def depart(generator, protocol, keep, careless, seed):
    """Play a round in which all honest devices but some leave the cohort with most colluders."""
    devices = protocol.parameters.devices
    ids = generator.permutation(devices).tolist()
    colluding = {*ids[: part_of(protocol.parameters.gamma, devices)]}

    def choose(server):
        cohorts = cohorts_on(order_of(server), protocol.cohort_size)
        honest = min(([id for id in cohort if id not in colluding] for cohort in cohorts), key=len)
        return dict.fromkeys(honest[keep:], "masked_input")

    plan = Plan(hostile=tuple(colluding), seed=seed)
    return play(protocol, plan, choose=choose, careless=careless)


def floor_kept(outcome):
    """Return in words whether a round was accepted, or not, that should not, or should."""
    there = {*range(outcome.protocol.parameters.devices)} - {*outcome.dropouts}
    least = least_survivors(outcome)
    cohorts = cohorts_on(order_of(outcome.server), outcome.protocol.cohort_size)
    fewest = min(len({*one} & there) for one in cohorts)
    if outcome.accepted and fewest < least:
        return f"a cohort with {fewest} survivors was accepted, and {least} are needed"
    enough = len(there) >= outcome.protocol.topology.threshold + 2
    if not outcome.accepted and fewest >= least and enough:
        return f"a round ended of which all cohorts have survivors enough: {outcome.error}"
    return ""


def least_survivors(outcome):
    """Return how many must survive of a cohort: its floor, and as many as may collude."""
    parameters, size = outcome.protocol.parameters, outcome.protocol.cohort_size
    failure = Fraction(1, 2**parameters.security_bits)
    colluding = len(outcome.plan.hostile)
    return parameters.min_cohort + most_colluding(parameters.devices, colluding, size, failure)


def cut_cohorts(generator, seed):
    """Once the ring is known, let those leave that link a victim with others of its cohorts."""
    devices, gamma, floor = 60, 0.1, int(generator.integers(2, 4))
    options = {"dropout": 0.3, "gamma": gamma, "min_cohort": floor, "security_bits": BITS}
    alpha = float(generator.choice([0.35, 0.4, 0.45]))
    protocol = make("cohort", devices, devices, alpha=alpha, correctness_bits=4, **options)
    size, reach = protocol.cohort_size, protocol.topology.degree // 2
    colluding = {*generator.permutation(devices)[: part_of(gamma, devices)].tolist()}
    least = floor + most_colluding(devices, len(colluding), size, Fraction(1, 2**BITS))
    # As many as leave every cohort what devices insist on, and secrets as many holders as planned.
    most = min(size - least, part_of(0.3, devices))

    def choose(server):
        found = [
            [id for id in behind if id not in colluding]
            for victim, *behind in cohorts_on(order_of(server), reach + 1)
            if victim not in colluding
        ]
        return dict.fromkeys(min(found, key=len)[:most], "masked_input")

    outcome = play(protocol, Plan(hostile=tuple(colluding), seed=seed), choose=choose)
    return found_in("cut cohorts", "cohort", outcome, chance=2.0**-BITS)


# The order of the ring


def ground_keys(generator, seed):
    """Let the last device try keys until the ring suits it, knowing what all others know."""
    devices, gamma, tries = 40, 0.3, 1 << 8
    protocol = make("cohort", devices, 80, alpha=0.3, dropout=0.0, gamma=gamma)
    colluding = tuple(range(devices - part_of(gamma, devices), devices))
    size = protocol.cohort_size
    foreseen = []

    def worst(order):
        """Return how many honest devices the cohort has that has the fewest."""
        return min(len({*one} - {*colluding}) for one in cohorts_on(order, size))

    def wrap(id, player, round_):
        if id != colluding[-1]:
            return player
        device = round_.devices[id]

        def grind():
            public = {other: advertised(round_.devices[other]) for other in range(devices - 1)}
            # The server colludes: if it has drawn its nonce, the device knows it.
            nonce = getattr(round_.server, "nonce", None) or bytes(16)
            found = []
            for _ in range(tries):
                payload = player.send_advertise_keys()
                keys = {**public, id: payload.tobytes()}
                order = ring_order(devices, keys, nonce, protocol.round_context(0)).tolist()
                pairs = device.state.transport, device.state.masking
                found.append((worst(order), order, payload, pairs))
            _, foreseen[:], payload, pairs = min(found, key=lambda one: one[0])
            device.state.transport, device.state.masking = pairs
            return payload

        return Wrapped(player, send_advertise_keys=grind)

    outcome = play(protocol, Plan(hostile=colluding, seed=seed), wrap=wrap)
    found = found_in("ground keys", "cohort", outcome, chance=2.0**-BITS)
    order = order_of(outcome.server)
    if order == foreseen:
        # One order of 40! does by chance.
        found.broken.append("the order of the ring was known before the last device had chosen")
    if outcome.accepted:
        # Any floor rests on this: by chance, a cohort seldom has more colluders than so many.
        most = size - worst(order)
        allowed = most_colluding(devices, len(colluding), size, Fraction(1, 2**BITS))
        if most > allowed:
            found.failed.append(f"a cohort of {size} holds {most} colluders, not {allowed}")
    return found


# Noise


def few_noises(generator, seed):
    """Let devices vanish, so that less noise is in a sum than was promised."""
    case = chosen(generator, ["secagg", "secagg-graph", "cohort"])
    gone = int(generator.integers(0, 6))
    outcome = leave_noise(case, gone, bool(generator.integers(2)), seed)
    return found_in("few noises", case, outcome, "" if gone > 2 else ended(outcome))


def leave_noise(case, gone, careless, seed):
    """Play a round with noise, in which so many of a sum's honest devices leave."""
    devices, gamma = 12, 0.17
    protocol = with_noise(made(case, devices, dropout=0.2, gamma=gamma, alpha=0.75))
    colluding = tuple(range(part_of(gamma, devices)))

    def choose(server):
        order = order_of(server) or [*range(devices)]
        sums = cohorts_on(order, protocol.cohort_size if case == "cohort" else len(order))
        honest = min(([id for id in one if id not in colluding] for one in sums), key=len)
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
    return found_in("drawn from many", "secagg", outcome, ended(outcome), chance=chance)


# Which devices of a population collude.
MANY = [id < 14 for id in range(120)]


def sampled():
    """Return a protocol with noise for devices of a population, and how many of them collude."""
    devices, population = 12, len(MANY)
    options = {"gamma": 0.12, "population": population, "security_bits": BITS}
    protocol = with_noise(make("secagg", devices, dropout=0.0, **options))
    return protocol, drawn(population, sum(MANY), devices)


def sample(generator, protocol, count, gone, seed):
    """Play a round of which so many collude; one device more than are planned may be gone."""
    return leave(generator, protocol, count, gone, "masked_input", False, seed)


# Dealers that are framed


def framed_dealers(generator, seed):
    """Let colluders answer falsely about honest dealers of their choice, so that these are out."""
    case = chosen(generator, ["secagg", "secagg-graph", "secagg-graph", "cohort"])
    protocol = frameable(case)
    cut = bool(generator.integers(2)) and case != "secagg"
    count = 0 if cut else 1 + int(generator.integers(5))
    # Either nobody drops out, or as many as leave it at one more than are planned.
    gone = at_most_gone(protocol, count) if count and generator.integers(2) else 0
    answer = chosen(generator, hostile_rounds.ANSWERS)
    outcome = frame(generator, protocol, count, gone, answer, seed)
    if case == "secagg":
        return found_in("framed dealers", case, outcome)
    out = len(missing_honest(outcome)) if outcome.accepted else 0
    kept = ring_kept(outcome, out)
    return found_in("framed dealers", case, outcome, kept, chance=limit_of(protocol))


def at_most_gone(protocol, framed):
    """Return how many may drop out beside so many framed, with one more than planned gone."""
    parameters = protocol.parameters
    return max(0, part_of(parameters.dropout, parameters.devices) + 1 - framed)


def frameable(case):
    """Return a protocol with noise, of which a few honest devices can be cut off."""
    if case == "secagg":
        return with_noise(make(case, 14, dropout=0.2, gamma=0.22))
    options = {"security_bits": BITS, "correctness_bits": CORRECTNESS_BITS, "alpha": 0.3}
    return with_noise(make(case, 70, 70, dropout=0.3, gamma=0.15, **options))


def frame(generator, protocol, count, gone, answer, seed, careless=False):
    """Play a round in which colluders frame so many dealers, or for 0 those that cut a part off.

    Others of the honest, as many as are to be gone, drop out by chance.
    """
    devices = protocol.parameters.devices
    ids = generator.permutation(devices).tolist()
    colluding = {*ids[: part_of(protocol.parameters.gamma, devices)]}
    plan = Plan(hostile=tuple(colluding), answer=answer, seed=seed)

    def choose(server):
        order = order_of(server) or ids
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
    gaps = [{*one} - colluding for one in cohorts_on(order, half)]
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


# What is said before


def promised_numbers(generator, seed):
    """Compute what is promised before a round for the worst that it reckons with."""
    what = chosen(generator, NUMBERS)
    try:
        wrong = [one for one in NUMBERS[what](generator) if one]
    except UsageError:
        # Parameters that cannot be kept are refused.
        return Finding("promised numbers", what, False)
    return Finding("promised numbers", what, True, wrong)


# What was sent before


def replays(generator, seed):
    """Let a device send what another, or it itself in another round, has sent."""
    case = chosen(generator, [case for case in CASES if "active" not in case])
    devices = int(generator.integers(10, 14))
    protocol, me = made(case, devices), int(generator.integers(devices))
    before = play(protocol, Plan(seed=seed), index=0)
    what = chosen(generator, ["send_advertise_keys", "send_share_keys", "send_unmask"])
    other = (me + 1 + int(generator.integers(devices - 1))) % devices

    def wrap(id, player, round_):
        source = round_.devices[other] if generator.integers(2) else before.devices[me]

        def keys():
            player.send_advertise_keys()
            return np.frombuffer(advertised(source), np.uint8)

        def rows():
            receivers, sent = player.send_share_keys()
            return receivers, np.roll(sent, 1, axis=0)

        def answers():
            return np.roll(player.send_unmask(), 4)

        again = {"send_advertise_keys": keys, "send_share_keys": rows, "send_unmask": answers}
        return Wrapped(player, **{what: again[what]}) if id == me else player

    outcome = play(protocol, Plan(hostile=(me,), seed=seed), index=1, wrap=wrap)
    return found_in("replays", case, outcome, honest_lost(outcome))


def old_endorsements(generator, seed):
    """Let a server that cheats play a round twice, to have two lists of survivors endorsed."""
    case = chosen(generator, [case for case in CASES if "active" in case])
    protocol = made(case, 10)
    enrolled = play(protocol, Plan(seed=seed), index=0).identities
    # As they are in a device that is set back to where it was.
    before = {id: copy.copy(identity) for id, identity in enrolled.items()}
    first, tags = endorsed(protocol, enrolled, seed)
    again, _ = endorsed(protocol, enrolled, seed + 1)
    later, others = endorsed(protocol, before, seed + 1)
    found = found_in("old endorsements", case, first, ended(later))
    if again.accepted:
        found.broken.append("devices took part in a round twice")
    if not tags or any({*tags[id]} & {*others.get(id, [])} for id in tags):
        found.broken.append("what was endorsed in one round passes for another")
    return found


def endorsed(protocol, identities, seed):
    """Play round 1, and return the tags by which each device has endorsed its survivors."""
    tags = {}

    def wrap(id, player, round_):
        def recorded():
            payload = player.send_consistency_check()
            tags[id] = [one.tobytes() for one in payload.view(np.uint8).reshape(-1, 16)]
            return payload

        return Wrapped(player, send_consistency_check=recorded)

    outcome = play(protocol, Plan(seed=seed), index=1, wrap=wrap, identities=identities)
    return outcome, tags


# What is uploaded, and what is made of it


def bad_values(generator, seed):
    """Let a device's vector hold what is not a number, or is infinite."""
    case = chosen(generator, CASES)
    devices = int(generator.integers(10, 14))
    me = int(generator.integers(devices))
    value = float(generator.choice([np.nan, np.inf, -np.inf]))

    def wrap(id, player, round_):
        def spoiled(vector):
            return player.send_masked_input(np.full_like(vector, value))

        return Wrapped(player, send_masked_input=spoiled) if id == me else player

    outcome = play(made(case, devices), Plan(hostile=(me,), seed=seed), wrap=wrap)
    used = "its vector was used" if outcome.accepted and me in outcome.survivors else ""
    return found_in("bad values", case, outcome, used, honest_lost(outcome))


def saved_sums(generator, seed):
    """Let others drop out than are planned: sum and mean are those of who is there."""
    case, devices = chosen(generator, CASES), int(generator.integers(10, 15))
    weights = generator.uniform(0.5, 1.5, devices)
    protocol = made(case, devices, weights=weights / weights.sum(), levels=2**20)
    ids, count = generator.permutation(devices).tolist(), int(generator.integers(0, 4))
    spare = min(count, to_spare(protocol))
    outcome = play(protocol, Plan(seed=seed), dropouts=dict.fromkeys(ids[:spare], "masked_input"))
    wrong = wrong_mean(outcome) if outcome.accepted else [ended(outcome)]
    return found_in("saved sums", case, outcome, *wrong)


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
    if protocol.name in ("sparse", "common"):
        # An estimate: each coordinate is sent with a probability.
        total, weight = total / protocol.inclusion, np.full_like(weight, survived)
    there = weight > 0
    mean = total[there] / weight[there]
    saved = protocol.aggregate(outcome.server)
    return [
        f"the {name} that is saved is wrong by up to {np.abs(found[there] - true).max():.3g}"
        for name, found, true in (("sum", saved.sum, survived * mean), ("mean", saved.mean, mean))
        if not np.allclose(found[there], true, rtol=0, atol=1e-3)
    ]


# Of how many of a hundred rounds; those with many devices take longest.
STRATEGIES = {
    one_hostile_device: 36,
    hostile_on_large_rings: 6,
    several_liars: 10,
    removed_devices: 4,
    framed_dealers: 4,
    early_leavers: 4,
    chosen_departures: 8,
    cut_cohorts: 3,
    ground_keys: 2,
    few_noises: 8,
    drawn_from_many: 6,
    promised_numbers: 7,
    replays: 4,
    old_endorsements: 2,
    bad_values: 4,
    saved_sums: 2,
}


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


def too_many(failures, chances):
    """Return whether chance gives so many failures with a probability below `ALARM`."""
    return failures > 0 and at_least(failures, chances) < ALARM


def by_strategy(findings):
    return [
        (name, [one for one in findings if one.strategy == name])
        for name in dict.fromkeys(one.strategy for one in findings)
    ]


def alarming(findings):
    """Return the rounds with what must not be, and those of promises that failed too often."""
    found = [one for one in findings if one.broken]
    for _, rows in by_strategy(findings):
        failed = [one for one in rows if one.failed]
        if too_many(len(failed), [one.chance for one in rows]):
            found += [one for one in failed if not one.broken]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategy", choices=[one.__name__ for one in STRATEGIES])
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    played = {
        one: weight
        for one, weight in STRATEGIES.items()
        if arguments.strategy in (None, one.__name__)
    }
    every, weights = [*played], np.array([*played.values()]) / sum(played.values())
    # Each strategy at least once, however few rounds there are.
    more = generator.choice(len(every), max(0, arguments.rounds - len(every)), p=weights)
    strategies = [*every, *(every[k] for k in more)][: arguments.rounds]
    findings = [play(generator, arguments.seed * 10**6 + k) for k, play in enumerate(strategies)]
    columns = ("rounds", "accepted", "broken", "failed", "may fail")
    print(f"{'strategy':<24}" + "".join(f"{name:>10}" for name in columns))
    for name, rows in by_strategy(findings):
        accepted, broken = sum(one.accepted for one in rows), sum(bool(one.broken) for one in rows)
        failed, expected = sum(bool(one.failed) for one in rows), sum(one.chance for one in rows)
        print(f"{name:<24}{len(rows):>10}{accepted:>10}{broken:>10}{failed:>10}{expected:>10.3f}")
    found = alarming(findings)
    for one in found[:20]:
        print(f"{one.strategy}, {one.case}: {'; '.join(one.broken + one.failed)}"[:300])
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
