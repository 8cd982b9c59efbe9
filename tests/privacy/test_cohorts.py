from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from graphs import honest_survivors

from hpcfl.errors import UsageError
from hpcfl.privacy.cohorts import (
    below_floor,
    below_floor_probability,
    cohort_size,
    fewest_survivors,
    honest_in_cohort,
    refused,
)
from hpcfl.privacy.population import Population, count_of
from hpcfl.privacy.threat import Threat
from hpcfl.rounds.dropouts import DropoutSchedule

MODELS = ["exact", "bernoulli", "targeted"]


def exact_below(devices, honest, cohort, floor):
    ways = (comb(honest, c) * comb(devices - honest, cohort - c) for c in range(floor))
    return Fraction(sum(ways), comb(devices, cohort))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_honest_survivors_are_those_of_all_cases(model, dropout):
    population = Population(7, 2, dropout, model)
    expected = np.zeros(6)
    for honest, likely in honest_survivors(7, 2, dropout, model).items():
        expected[len(honest)] += likely
    survivors, probability = population.honest_survivors()
    found = np.zeros(6)
    found[survivors] = probability

    assert found == pytest.approx(expected, abs=1e-14)
    assert population.mean_honest_survivors == pytest.approx(expected @ np.arange(6))


def test_as_many_drop_out_as_in_a_benchmark():
    for rate, devices in [(0.29, 100), (0.3, 25), (0.1, 9), (0.07, 100)]:
        schedule = DropoutSchedule(devices, rate, "exact", "masked_input", 0)
        assert Population(devices, 0, rate).dropped == len(schedule.draw(0))


def test_a_probability_is_exact_at_any_size():
    for devices, colluding, dropout, cohort, floor in [
        (100, 33, 0.3, 20, 3),
        (1000, 333, 0.1, 60, 10),
        (10_000, 3333, 0.3, 300, 50),
    ]:
        population = Population(devices, colluding, dropout, "targeted")
        honest = devices - colluding - population.dropped
        expected = exact_below(devices, honest, cohort, floor)

        assert below_floor_probability(population, cohort, floor) == pytest.approx(
            float(expected), rel=1e-8, abs=0
        )


@pytest.mark.parametrize("model", MODELS)
def test_probability_is_the_mean_over_survivors(model):
    population = Population(9, 3, 0.3, model)
    expected = sum(
        likely * exact_below(9, len(honest), 5, 3)
        for honest, likely in honest_survivors(9, 3, 0.3, model).items()
    )

    assert below_floor_probability(population, 5, 3) == pytest.approx(float(expected), rel=1e-12)
    assert honest_in_cohort(population, 5)[:3].sum() == pytest.approx(float(expected), rel=1e-12)


def test_several_blocks_are_bounded_given_the_survivors():
    population = Population(9, 3, 0.3, "bernoulli")
    expected = sum(
        likely * min(1, 4 * exact_below(9, len(honest), 6, 2))
        for honest, likely in honest_survivors(9, 3, 0.3, "bernoulli").items()
    )

    assert below_floor_probability(population, 6, 2, 4) == pytest.approx(float(expected), rel=1e-12)
    assert below_floor_probability(population, 6, 2, 10**9) <= 1


def of_cohorts(devices, here, cohort, count):
    """Return the expected number of the cohorts of a ring for whose size among `here` it is true.

    Every placement of so many devices around a ring is looked at.
    """
    total = 0
    for places in combinations(range(devices), here):
        for first in range(devices):
            inside = {(first + k) % devices for k in range(cohort)}
            total += count(len(inside & {*places}))
    return Fraction(total, comb(devices, here))


@pytest.mark.parametrize(
    ("devices", "colluding", "dropped", "population"),
    [(8, 2, 3, 8), (7, 0, 2, 7), (8, 3, 5, 8), (7, 4, 2, 12), (8, 1, 0, 30)],
)
@pytest.mark.parametrize("cohort", [1, 3, 5])
def test_colluders_stay_and_the_honest_drop_out_of_cohorts(
    devices, colluding, dropped, population, cohort
):
    threat = Threat(devices, colluding, dropped, population)
    for floor in (1, 2, 3):
        expected = Fraction(0)
        for bad in range(devices + 1):
            ways = comb(colluding, bad) * comb(population - colluding, devices - bad)
            honest = max(0, devices - bad - dropped)
            fewer = of_cohorts(devices, honest, cohort, lambda size: size < floor)  # noqa: B023
            expected += Fraction(ways, comb(population, devices)) * min(1, fewer)

        found = below_floor(threat, cohort, floor)
        assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("dropped", [0, 2, 5])
@pytest.mark.parametrize("cohort", [1, 4, 8])
def test_cohorts_are_refused_whose_survivors_are_too_few(dropped, cohort):
    threat = Threat(8, 3, dropped, 8)
    for least in range(cohort + 2):
        expected = of_cohorts(8, 8 - dropped, cohort, lambda size: size < least)  # noqa: B023
        found = refused(threat, cohort, least)
        assert found == pytest.approx(min(1.0, float(expected)), rel=1e-12, abs=1e-15)


def test_where_devices_drop_out_by_chance_survivors_are_binomial_but_for_one_that_vanishes():
    rate, devices, cohort = Fraction(3, 10), 20, 6
    threat = Threat(devices, 2, 11, devices, rate=0.3)
    for least in range(cohort + 1):
        fewer = sum(
            comb(cohort - 1, size) * (1 - rate) ** size * rate ** (cohort - 1 - size)
            for size in range(min(least, cohort))
        )
        expected = min(1.0, float(devices * fewer))
        assert refused(threat, cohort, least) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("threat", "cohort"),
    [
        (Threat(100, 10, 30, 100), 40),
        (Threat(100, 10, 0, 100), 40),
        (Threat(100, 10, 30, 1000), 10),
        (Threat(50, 0, 21, 50, rate=0.2), 30),
    ],
)
@pytest.mark.parametrize("failure", [0.5, 1e-3, 2.0**-20])
def test_so_many_survive_in_every_cohort_and_one_more_is_not_sure(threat, cohort, failure):
    least = fewest_survivors(threat, cohort, failure)

    assert refused(threat, cohort, least) <= failure
    assert least == cohort or refused(threat, cohort, least + 1) > failure


def test_a_floor_above_the_cohort_is_never_kept():
    assert below_floor_probability(Population(10, 2), 3, 4) == pytest.approx(1)


def test_cohort_sizes_are_rounded_half_up_as_written():
    assert cohort_size(100, 0.1) == 10
    assert cohort_size(50, 0.25) == 13
    assert cohort_size(50, 0.29) == 15  # 14.5, though 0.29 * 50 is less in binary
    assert cohort_size(25, 0.1) == 3
    assert cohort_size(3, 0.1) == 1
    assert cohort_size(7, 1.0) == 7


def test_fractions_of_devices_are_exact():
    assert count_of(Fraction(1, 3), 99) == 33
    assert count_of(Fraction(1, 3), 100) == 33
    assert count_of(Fraction("0.29"), 100) == 29


@pytest.mark.parametrize("fraction", [Fraction(-1, 2), Fraction(3, 2)])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(UsageError, match="not between 0 and 1"):
        count_of(fraction, 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 0), "at least 2"),
        ((10, -1), "-1 of 10 devices"),
        ((10, 6), "must be 0 to 5"),
        ((10, 0, 0.5), "below 0.5"),
        ((10, 0, -0.1), "at least 0"),
        ((10, 0, float("nan")), "rate is nan"),
        ((10, 0, 0.1, "sometimes"), "choose one of exact, bernoulli, targeted"),
        ((3, 1, 0.4, "targeted"), None),
        ((2, 1, 0.4, "targeted"), None),
        ((9, 4, 0.45, "targeted"), None),
        ((7, 3, 0.45, "targeted"), None),
    ],
)
def test_impossible_populations_are_refused(arguments, words):
    if words is None:
        assert Population(*arguments).mean_honest_survivors > 0
    else:
        with pytest.raises(UsageError, match=words):
            Population(*arguments)


def test_impossible_cohorts_floors_and_failures_are_refused():
    population = Population(10, 3)
    for call, words in [
        (lambda: below_floor_probability(population, 11, 2), "cohort of 11"),
        (lambda: below_floor_probability(population, 0, 2), "cohort of 0"),
        (lambda: honest_in_cohort(population, 11), "cohort of 11"),
        (lambda: below_floor_probability(population, 5, 0), "floor is 0"),
        (lambda: below_floor_probability(population, 5, 2, 0), "number of blocks is 0"),
        (lambda: cohort_size(10, 0.0), "alpha is 0.0"),
    ]:
        with pytest.raises(UsageError, match=words):
            call()
