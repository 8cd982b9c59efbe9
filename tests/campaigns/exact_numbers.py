"""Exact probabilities of what can happen in a round, and what promises say of them before it.

With fractions, and with code of its own: what the program computes is compared with this.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import Any

from hostile_rounds import make

from hpcfl.algorithms.aggregation.cohort import Floor
from hpcfl.algorithms.aggregation.promises import NoiseInSum
from hpcfl.algorithms.aggregation.topology import Linked, Unopened
from hpcfl.algorithms.noise import IntegerNoise
from hpcfl.privacy.ring import failures

# How often a round may not end, as a power of two.
CORRECTNESS_BITS = 20
# What the program computes in floating point may be so much too small.
ROUNDED = Fraction(1001, 1000)


@lru_cache(maxsize=2048)
def drawn(whole, marked, size):
    """Return with what probability 0, 1, ... of some devices that chance has drawn are marked."""
    ways = comb(whole, size)
    return [
        Fraction(comb(marked, c) * comb(whole - marked, size - c), ways) for c in range(size + 1)
    ]


def by_chance(count, rate):
    """Return with what probability 0, 1, ... of some devices do what each does with a rate."""
    each = Fraction(repr(rate))
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
    """Return the most colluders of any cohort, but for a probability."""
    return exceeded_seldom(drawn(devices, colluding, size), failure / devices)


@lru_cache(maxsize=512)
def ring_bound(ring, colluding, absent, degree, threshold, expelled=0):
    """Return the bound of what happened: a secret is revealed, or the honest are split.

    Of the devices of a ring, `absent` are gone wherever chance has put them, besides those that
    collude; `expelled` more were chosen with the ring known.
    """
    degree = min(degree, ring - 1)
    revealed = sum(drawn(ring - 1, colluding, degree)[threshold:], Fraction(0))
    if degree == ring - 1:
        return min(Fraction(1), revealed)
    half = degree // 2
    gone = drawn(ring, min(ring, colluding + absent), half)
    split = sum(gone[max(0, half - expelled) :], Fraction(0))
    return min(Fraction(1), (ring - colluding) * revealed + ring * split)


def part_of(rate, count):
    """Return as many of some devices as a rate says, rounded down."""
    return math.floor(Fraction(repr(rate)) * count)


# What is promised


def promised(protocol, kind):
    """Return what a protocol promises of a kind; None if it does not."""
    return next((one for one in protocol.promises() if isinstance(one, kind)), None)


def in_bits(chance):
    if not chance:
        return "0"
    return f"2^{math.log2(chance.numerator) - math.log2(chance.denominator):.1f}"


def limit_of(protocol):
    """Return how often the promises of a ring may fail."""
    return Fraction(promised(protocol, Linked).worst)


def too_small(what, said, true):
    # Floating-point numbers end somewhere.
    said = Fraction(said)
    if min(true, 1) <= ROUNDED * said or true < Fraction(1, 2**300):
        return ""
    return f"{what}: said is {in_bits(said)}, and it is {in_bits(true)}"


@dataclass
class Reckoned:
    """What a round is planned with, and the worst of it."""

    options: dict[str, Any]
    devices: int
    population: int
    colluding: int  # of the population
    gone: int  # the most that drop out

    @classmethod
    def draw(cls, generator, **more):
        """Return one of many plans."""
        devices = int(generator.integers(12, 121))
        population = devices * int(generator.choice([1, 1, 3, 10]))
        gamma = float(generator.choice([0.05, 0.1, 0.2, 0.33]))
        rate = float(generator.choice([0.0, 0.1, 0.3, 0.45]))
        model = str(generator.choice(["exact", "bernoulli"]))
        bits = int(generator.choice([10, 20, 40]))
        options = {"gamma": gamma, "dropout": rate, "dropout_model": model}
        options |= {"population": population, "security_bits": bits}
        options |= {"correctness_bits": CORRECTNESS_BITS, **more}
        gone = min(part_of(rate, devices) + 1, devices - 1)
        if model == "bernoulli" and rate > 0:
            gone = exceeded_seldom(by_chance(devices, rate), Fraction(1, 2**CORRECTNESS_BITS))
        return cls(options, devices, population, part_of(gamma, population), gone)

    @property
    def failure(self):
        return Fraction(1, 2 ** self.options["security_bits"])

    def among(self, size):
        """Return the distribution of the colluders among some devices of a round."""
        return drawn(self.population, self.colluding, size)

    def made(self, name):
        return make(name, self.devices, 200, **self.options)


# Each draws a plan and returns in words which numbers are too small, "" for none.


def ring(generator):
    """Compare what is said of a ring."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg-graph")
    degree, threshold = protocol.topology.degree, protocol.topology.threshold
    devices, gone, half = plan.devices, plan.gone, degree // 2
    if degree == devices - 1:
        revealed = sum(plan.among(devices)[threshold:])
        return [too_small("revealed", promised(protocol, Linked | Unopened).worst, revealed)]
    # With the honest device itself taken out of all, its neighbours are drawn from the others.
    honest = devices - (plan.colluding if plan.population == devices else 0)
    true = honest * sum(drawn(plan.population - 1, plan.colluding, degree)[threshold:])
    # One may be expelled besides, by who knows the ring.
    apart = devices * sum(
        chance * sum(drawn(devices, min(colluders + gone, devices), half)[half - 1 :])
        for colluders, chance in enumerate(plan.among(devices))
    )
    # If no more drop out than are reckoned with: of a device that has, itself. One that answers
    # falsely takes two neighbours more than the threshold.
    left = drawn(devices - 1, devices - max(gone, 1), degree)
    threat = promised(protocol, Linked).threat
    stuck = failures(threat.with_dropped(threat.dropped), degree, threshold).stuck
    return [
        too_small("masks fail", limit_of(protocol), true + apart),
        too_small("cannot end", stuck, devices * sum(left[: threshold + 2])),
        "too likely to fail" if true + apart > ROUNDED * plan.failure else "",
    ]


def threshold(generator):
    """Compare how likely a secret is opened where all are linked with all."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg")
    true = sum(plan.among(plan.devices)[protocol.topology.threshold :])
    return [too_small("revealed", promised(protocol, Unopened).worst, true)]


def noise(generator):
    """Compare whose noise is promised."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg")
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    colluding = exceeded_seldom(plan.among(plan.devices), plan.failure)
    there = max(1, plan.devices - plan.gone - colluding)
    count = promised(protocol, NoiseInSum).honest
    return [f"the noise of {count} is promised, and {there} may be there" if count > there else ""]


def floor(generator):
    """Compare how many survivors of a cohort devices insist on."""
    least = int(generator.integers(2, 6))
    plan = Reckoned.draw(generator, min_cohort=least)
    plan.options |= {"alpha": float(generator.uniform(0.3, 1)), "correctness_bits": 2}
    protocol = plan.made("cohort")
    said = promised(protocol, Floor)
    among = plan.among(protocol.cohort_size)
    needed = least + exceeded_seldom(among, plan.failure / plan.devices)
    true = plan.devices * sum(among[said.least - least + 1 :])
    return [
        f"{said.least} survivors are insisted on, {needed} needed" if said.least < needed else "",
        too_small("below the floor", said.worst, true),
    ]


def active(generator):
    """Ask for a round against a server that cheats, with more colluders than that bears."""
    plan = Reckoned.draw(generator, security="active")
    protocol = plan.made("secagg")
    borne = 2 * protocol.topology.threshold - plan.devices - 1
    most = exceeded_seldom(plan.among(plan.devices), plan.failure)
    return [f"{most} may collude in a round that bears {borne}" if most > borne else ""]


NUMBERS = {one.__name__: one for one in (ring, threshold, noise, floor, active)}
