"""Exact probabilities of what can happen in a round, and what is printed of them before it.

With fractions, and with code of its own: what the program computes is compared with this.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import Any

from hostile_rounds import make

from hpcfl.algorithms.noise import IntegerNoise

# How often a round may not end, as a power of two.
CORRECTNESS_BITS = 20
# Printed numbers are rounded to a tenth of a bit, or to two digits.
ROUNDED = Fraction(11, 10)
POWER = r"(2\^-?\d+(?:\.\d+)?|0\b)"


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


# What is printed


def said(pattern, protocol, otherwise=None):
    """Return what a protocol's promises say where a pattern has its group."""
    for one in protocol.promises():
        found = re.search(pattern, one.claim)
        if found is not None:
            return found[1]
    assert otherwise is not None, (pattern, protocol.promises())
    return otherwise


def power(text):
    return Fraction(0) if text == "0" else Fraction(2 ** float(text.removeprefix("2^")))


def in_bits(chance):
    if not chance:
        return "0"
    return f"2^{math.log2(chance.numerator) - math.log2(chance.denominator):.1f}"


def ring_numbers(protocol):
    """Return what is printed of a ring: revealed, not all linked, too few left to end well."""
    text = " ".join(one.claim for one in protocol.promises())
    found = re.search(
        rf"revealed with a probability of at most {POWER}, the honest are not all linked with "
        rf"{POWER},.*? with {POWER}",
        text,
    )
    assert found is not None, text
    return [power(one) for one in found.groups()]


def limit_of(protocol):
    """Return how often the promises of a ring may fail, by what is printed and was asked for."""
    revealed, split, _ = ring_numbers(protocol)
    return max(revealed + split, Fraction(1, 2**protocol.parameters.security_bits))


def too_small(what, printed, true):
    # Floating-point numbers end somewhere.
    if min(true, 1) <= ROUNDED * printed or true < Fraction(1, 2**300):
        return ""
    return f"{what}: printed is {in_bits(printed)}, and it is {in_bits(true)}"


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


# Each draws a plan and returns in words which printed numbers are too small, "" for none.


def ring(generator):
    """Compare what is printed of a ring."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg-graph")
    degree, threshold = protocol.topology.degree, protocol.topology.threshold
    devices, gone, half = plan.devices, plan.gone, degree // 2
    revealed, split, stuck = ring_numbers(protocol)
    if degree == devices - 1:
        return [too_small("revealed", revealed, sum(plan.among(devices)[threshold:]))]
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
    least = int(said(r"fewer than (\d+) neighbours left", protocol, str(threshold)))
    return [
        too_small("revealed", revealed, true),
        too_small("not all linked", split, apart),
        too_small("cannot end", stuck, devices * sum(left[:least])),
        "too likely to fail" if true + apart > ROUNDED * plan.failure else "",
    ]


def threshold(generator):
    """Compare how likely a secret is opened where all are linked with all."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg")
    found = said(rf"in collusion but for a probability of {POWER}", protocol, "0")
    true = sum(plan.among(plan.devices)[protocol.topology.threshold :])
    return [too_small("revealed", power(found), true)]


def noise(generator):
    """Compare whose noise is promised."""
    plan = Reckoned.draw(generator)
    protocol = plan.made("secagg")
    protocol.add_noise(IntegerNoise(3, bytes(16)))
    colluding = exceeded_seldom(plan.among(plan.devices), plan.failure)
    there = max(1, plan.devices - plan.gone - colluding)
    count = int(said(r"the noise of at least (\d+) honest device", protocol))
    return [f"the noise of {count} is promised, and {there} may be there" if count > there else ""]


def floor(generator):
    """Compare how many survivors of a cohort devices insist on."""
    least = int(generator.integers(2, 6))
    plan = Reckoned.draw(generator, min_cohort=least)
    plan.options |= {"alpha": float(generator.uniform(0.3, 1)), "correctness_bits": 2}
    protocol = plan.made("cohort")
    among = plan.among(protocol.cohort_size)
    needed = least + exceeded_seldom(among, plan.failure / plan.devices)
    count = int(said(r"at least (\d+) survive, or devices refuse", protocol))
    exceeded = power(said(rf"whoever drops out, but for a probability of {POWER}", protocol))
    true = plan.devices * sum(among[count - least + 1 :])
    return [
        f"{count} survivors are insisted on, {needed} are needed" if count < needed else "",
        too_small("below the floor", exceeded, true),
    ]


def cohort(generator):
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
    return [too_small("fewer than 2", Fraction(said(pattern, protocol)), true)]


def active(generator):
    """Ask for a round against a server that cheats, with more colluders than that bears."""
    plan = Reckoned.draw(generator, security="active")
    protocol = plan.made("secagg")
    borne = 2 * protocol.topology.threshold - plan.devices - 1
    most = exceeded_seldom(plan.among(plan.devices), plan.failure)
    return [f"{most} may collude in a round that bears {borne}" if most > borne else ""]


PRINTED = {one.__name__: one for one in (ring, threshold, noise, floor, cohort, active)}
