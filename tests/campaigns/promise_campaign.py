"""Rounds under attack: all promises of an accepted round must hold.

    python tests/campaigns/promise_campaign.py --rounds 10000 --seed 1

Every round uses one of `STRATEGIES`, over all protocols, with an adversary that chooses its victims
after it has seen everything visible. The promises are recomputed by separate code from the events
of the round, with exact probabilities as fractions.

Not a single round may have a wrong sum, lose an honest device, or be accepted although its promises
cannot hold. If a promise may fail with a probability, the probability for the events must not
exceed the promised and recorded one.

The first line of each strategy describes it. For each there is a test in `test_promises_hold.py`
that fails if the defence against the strategy is removed.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import comb
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import hostile_rounds
import numpy as np
from hostile_rounds import (
    CHECKS,
    Plan,
    make,
    missing_honest,
    moments,
    order_of,
    play,
    violations,
)

from hpcfl.algorithms.aggregation.promises import failure_of
from hpcfl.algorithms.aggregation.topology import Linked
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.errors import UsageError

# Each protocol that hides values, with its options where they matter little.
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
# Thresholds of rings by degree: without two neighbours, two more holders than needed answer.
SMALL_THRESHOLDS = {6: 3, 8: 5}
# Promises may fail here with probability 2^-BITS, so that few devices suffice for a ring.
BITS = 12
# A round may fail to end with probability 2^-CORRECTNESS_BITS.
CORRECTNESS_BITS = 20
# The factor by which the program's floating-point results may be too small.
ROUNDED = Fraction(1001, 1000)


@lru_cache(maxsize=2048)
def drawn(whole, marked, size):
    """Return the probabilities that 0, 1, ... of `size` randomly drawn devices are marked."""
    ways = comb(whole, size)
    return [
        Fraction(comb(marked, c) * comb(whole - marked, size - c), ways) for c in range(size + 1)
    ]


def exceeded_seldom(chances, failure):
    """Return the least number that is exceeded with a probability of at most `failure`."""
    beyond = Fraction(0)
    for count in range(len(chances) - 1, 0, -1):
        beyond += chances[count]
        if beyond > failure:
            return count
    return 0


def most_colluding(devices, colluding, size, failure):
    """Return the largest number of colluders in any cohort, except with a probability."""
    return exceeded_seldom(drawn(devices, colluding, size), failure / devices)


@lru_cache(maxsize=512)
def ring_bound(ring, colluding, absent, degree, threshold):
    """Return the bound for the events: a secret is revealed, or the honest devices are split.

    Besides the colluding devices, `absent` devices at random places of the ring are gone.
    """
    degree = min(degree, ring - 1)
    revealed = sum(drawn(ring - 1, colluding, degree)[threshold:], Fraction(0))
    if degree == ring - 1:
        return min(Fraction(1), revealed)
    half = degree // 2
    split = drawn(ring, min(ring, colluding + absent), half)[half]
    return min(Fraction(1), (ring - colluding) * revealed + ring * split)


def part_of(rate, count):
    """Return rate times count, rounded down."""
    return math.floor(Fraction(repr(rate)) * count)


def in_bits(chance):
    if not chance:
        return "0"
    return f"2^{math.log2(chance.numerator) - math.log2(chance.denominator):.1f}"


def limit_of(protocol):
    """Return the probability with which the promises of a ring may fail."""
    (linked,) = (one for one in protocol.promises() if isinstance(one, Linked))
    return Fraction(linked.worst)


@dataclass
class Finding:
    """One round of the campaign."""

    strategy: str
    case: str
    accepted: bool  # the round ended with a sum
    broken: list[str]  # the violated conditions


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


def found_in(strategy, case, outcome, *broken, by_chance=False):
    """Return the finding for a round.

    With `by_chance`, only a wrong sum counts, and with a floor of cohorts also a split cohort.
    """
    sure = ["the sum is wrong"]
    sure += ["fall into"] if outcome.protocol.parameters.min_cohort > 1 else []
    found = violations(outcome) if outcome.accepted else []
    certain = [one for one in found if not by_chance or any(phrase in one for phrase in sure)]
    return Finding(strategy, case, outcome.accepted, [*filter(None, broken), *certain])


def ended(outcome):
    """Return in words that a round ended without a sum, "" if it did not."""
    return "" if outcome.accepted else f"the round ended: {outcome.error}"


def honest_lost(outcome):
    """Return in words whether an attack has cost honest devices their round."""
    missing = missing_honest(outcome) if outcome.accepted else []
    return f"honest devices {missing} were lost" if missing else ended(outcome)


def to_spare(protocol):
    """Return how many holders of a secret may drop out so that two more than needed answer."""
    return int(protocol.topology.degree + 1 - protocol.topology.threshold - 2)


# One malicious device

TRICKS = (
    *("spoil", "spoil", "contradict", "other", "lie", "complain", "misdeal", "answer", "answer"),
    *("misdeal answer", "spoil answer", "copy"),
)


def one_device(generator, protocol, me, seed):
    """Return a device's plan with a randomly chosen trick."""
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
    """Let one device act maliciously, besides planned dropouts: no other one may be missing."""
    case, devices = chosen(generator, CASES), int(generator.integers(10, 15))
    protocol, me = made(case, devices), int(generator.integers(devices))
    plan = one_device(generator, protocol, me, seed)
    return beside_dropouts(generator, "one hostile device", case, protocol, plan)


def beside_dropouts(generator, strategy, case, protocol, plan):
    """Play a plan with the planned dropouts, as far as they leave two more answers than needed."""
    devices, before = protocol.parameters.devices, moments(protocol)
    if plan.tampered and plan.vanish in (CHECKS, "masked_input"):
        # If a device drops out and has shared a wrong mask key, all others must reveal their common
        # secrets with it; so none of them may drop out after the upload.
        before = before[: before.index("masked_input") + 1]
    others = [id for id in range(devices) if id not in plan.hostile]
    planned = part_of(protocol.parameters.dropout, devices)
    count = min(planned, to_spare(protocol)) if generator.integers(3) else 0
    # Either all at one moment, or each at a different one.
    together = chosen(generator, before)
    apart = bool(generator.integers(2))
    gone = {
        id: chosen(generator, before) if apart else together
        for id in generator.permutation(others)[:count].tolist()
    }
    outcome = play(protocol, plan, dropouts=gone)
    return found_in(strategy, case, outcome, honest_lost(outcome))


def several_liars(generator, seed):
    """Make as many of 41 devices hostile as can be identified: no honest device is lost."""
    case, rate = chosen(generator, AMONG_MANY), float(generator.choice([0.0, 0.1, 0.3]))
    name, options = AMONG_MANY[case]
    if case in FEW_NEIGHBOURS:
        rate = 0.3
    protocol = make(name, 41, dropout=rate, **options)
    code = getattr(protocol, "code", None)
    needed = protocol.topology.threshold if code is None else code.needed
    # With a code, or with few neighbours, dropouts already leave just enough answers.
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
    "opa": ("opa", {"committee": 41}),
    "secagg-graph": ("secagg-graph", {}),
}
del AMONG_MANY["secagg --degree 6"]
# These plan for one hostile neighbour, which chooses the dealers of its false answers.
FEW_NEIGHBOURS = ("secagg-graph", "cohort")


def one_of_several(generator, protocol, me, seed):
    plan = one_device(generator, protocol, me, seed)
    # Together with another device that hides their common secret, it would end the round.
    return replace(plan, vanish="") if plan.tampered else plan


def one_that_answers(generator, protocol, me, seed):
    """Return the plan of a device that answers falsely about all shares, or denies having any."""
    answer = chosen(generator, hostile_rounds.ANSWERS)
    return Plan((me,), answer=answer, about=tuple(range(41)), lie=bool(generator.integers(2)))


def one_holder(generator, protocol, me, seed):
    """Return the plan of a holder of pieces; as many may be hostile as wrong sums are tolerated."""
    trick = chosen(generator, ("lie", "complain", "spoil", "vanish"))
    return Plan(
        hostile=(me,),
        lie=trick == "lie",
        complain=trick == "complain",
        spoil="garbled" if trick == "spoil" else "",
        victims=tuple(range(41)),
        vanish=protocol.steps[-2].phase if trick == "vanish" else "",
    )


# Departures


def early_leavers(generator, seed):
    """Let honest devices drop out while colluders stay: as many as planned, or far more."""
    heavy, above = generator.random() < 0.2, bool(generator.integers(2))
    protocol, colluding = ring_for_leavers(heavy)
    planned = part_of(protocol.parameters.dropout, protocol.parameters.devices)
    count = above_plan(protocol, colluding) if above else planned
    phase = chosen(generator, ["advertise_keys", "share_keys", "masked_input"])
    careless = above and bool(generator.integers(2))
    outcome = leave(generator, protocol, colluding, count, phase, careless, seed)
    wrong = (ring_kept(outcome), "" if above else ended(outcome))
    return found_in("early leavers", "secagg-graph", outcome, *wrong, by_chance=True)


def ring_for_leavers(heavy=False):
    """Return a protocol whose rounds can end with many more dropouts than planned, and its A.

    `heavy` has more colluders, who weigh more on a ring without devices that advertised no keys.
    """
    devices, gamma, rate = (100, 0.2, 0.3) if heavy else (60, 0.1, 0.2)
    options = {"security_bits": BITS, "correctness_bits": CORRECTNESS_BITS}
    protocol = make("secagg-graph", devices, 12, dropout=rate, gamma=gamma, **options)
    return protocol, part_of(gamma, devices)


def above_plan(protocol, colluding):
    """Return the number of dropouts that makes the bound eight times the promised one."""
    devices, ring = protocol.parameters.devices, protocol.topology
    limit = limit_of(protocol)
    return next(
        count
        for count in range(devices)
        if ring_bound(devices, colluding, count, ring.degree, ring.threshold) > 8 * limit
    )


def leave(generator, protocol, colluding, count, phase, careless, seed):
    """Play a round with random colluders, and random dropouts among the other devices."""
    ids = generator.permutation(protocol.parameters.devices).tolist()
    plan = Plan(hostile=tuple(ids[:colluding]), seed=seed)
    gone = dict.fromkeys(ids[colluding : colluding + count], phase)
    return play(protocol, plan, dropouts=gone, careless=careless)


def ring_kept(outcome):
    """Return in words what is wrong with the failure probability of an accepted round."""
    if not outcome.accepted:
        return ""
    protocol, ring = outcome.protocol, len(order_of(outcome.server) or [])
    colluding = {*outcome.plan.hostile}
    absent = ring - len({*outcome.survivors} | colluding)
    limits = protocol.topology.degree, outcome.server._links.threshold
    true = ring_bound(ring, len(colluding), absent, *limits)
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
    """Let honest devices of the cohort with most colluders leave, once the ring is known."""
    protocol = cohorts_of_all()
    floor = protocol.parameters.min_cohort
    keep = floor - 1 + int(generator.integers(2) * generator.integers(10))
    outcome = depart(generator, protocol, keep, False, seed)
    return found_in("chosen departures", "cohort", outcome, floor_kept(outcome), by_chance=True)


def cohorts_of_all():
    """Return a protocol with the smallest cohorts that the program accepts.

    All devices of a cohort are linked, so only the floor of cohorts can be violated.
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
    """Return the ids of each cohort."""
    return [[order[(s + k) % len(order)] for k in range(size)] for s in range(len(order))]


def depart(generator, protocol, keep, careless, seed):
    """Play a round in which all but `keep` honest devices leave the cohort with most colluders."""
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
    """Return in words whether a round was wrongly accepted or wrongly ended."""
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
    """Return the least number of survivors of a cohort: its floor plus the possible colluders."""
    parameters, size = outcome.protocol.parameters, outcome.protocol.cohort_size
    failure = Fraction(1, 2**parameters.security_bits)
    colluding = len(outcome.plan.hostile)
    return parameters.min_cohort + most_colluding(parameters.devices, colluding, size, failure)


# Noise


def few_noises(generator, seed):
    """Let devices drop out, so that a sum has less noise than promised."""
    case = chosen(generator, ["secagg", "secagg-graph", "cohort"])
    gone = int(generator.integers(0, 6))
    outcome = leave_noise(case, gone, bool(generator.integers(2)), seed)
    return found_in("few noises", case, outcome, "" if gone > 2 else ended(outcome))


def leave_noise(case, gone, careless, seed):
    """Play a round with noise in which `gone` of a sum's honest devices leave."""
    devices, gamma = 12, 0.17
    protocol = with_noise(made(case, devices, dropout=0.2, gamma=gamma, alpha=0.75))
    colluding = tuple(range(part_of(gamma, devices)))

    def choose(server):
        order = order_of(server) or [*range(devices)]
        sums = cohorts_on(order, protocol.cohort_size if case == "cohort" else len(order))
        honest = min(([id for id in one if id not in colluding] for one in sums), key=len)
        return dict.fromkeys(honest[:gone], "masked_input")

    return play(protocol, Plan(hostile=colluding, seed=seed), choose=choose, careless=careless)


STRATEGIES = (
    one_hostile_device,
    several_liars,
    early_leavers,
    chosen_departures,
    few_noises,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategy", choices=[one.__name__ for one in STRATEGIES])
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    # Half of the rounds have one hostile device, which can do most; many devices take longest.
    turns = (one_hostile_device,) * (len(STRATEGIES) - 1) + STRATEGIES[1:]
    if arguments.strategy:
        turns = [one for one in STRATEGIES if one.__name__ == arguments.strategy]
    findings = [
        turns[k % len(turns)](generator, arguments.seed * 10**6 + k)
        for k in range(arguments.rounds)
    ]
    print(f"{'strategy':<24}{'rounds':>10}{'accepted':>10}{'broken':>10}")
    for name in dict.fromkeys(one.strategy for one in findings):
        rows = [one for one in findings if one.strategy == name]
        accepted, broken = sum(one.accepted for one in rows), sum(bool(one.broken) for one in rows)
        print(f"{name:<24}{len(rows):>10}{accepted:>10}{broken:>10}")
    found = [one for one in findings if one.broken]
    for one in found[:20]:
        print(f"{one.strategy}, {one.case}: {'; '.join(one.broken)}"[:300])
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
