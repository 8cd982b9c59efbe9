"""Who colludes and who drops out, of rounds, rings and cohorts, against counting all cases."""

from fractions import Fraction
from itertools import combinations
from math import comb, log

import numpy as np
import pytest

from hpcfl.algorithms.aggregation.cohort import cohort_size
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import binomial, hypergeometric, log_binomial
from hpcfl.privacy.population import count_of
from hpcfl.privacy.ring import (
    below_floor,
    choose,
    failures,
    fewest_survivors,
    refused,
)
from hpcfl.privacy.threat import SPARE, Threat


def chance(total, marked, drawn, hits):
    """Return how likely it is that so many of the drawn are marked."""
    ways = sum(comb(marked, k) * comb(total - marked, drawn - k) for k in hits if k <= drawn)
    return Fraction(ways, comb(total, drawn))


def least_exceeded(chances, failure):
    """Return the least number that is exceeded with at most a probability."""
    return next(n for n in range(len(chances)) if sum(chances[n + 1 :]) <= failure)


def test_probabilities_are_those_of_exact_integers():
    for n in (*range(80), 1000, 70_000):
        k = np.unique(np.minimum(n, [0, 1, 2, 31, 32, 33, n // 3, n // 2, n]))
        exact = [float(log(comb(n, int(some)))) for some in k]
        assert log_binomial(n, k) == pytest.approx(exact, rel=1e-13, abs=1e-15 * n * np.log(n + 2))
    assert np.isneginf(log_binomial(np.array([3, 3, 0]), np.array([4, -1, 1]))).all()
    assert binomial(5, 0.0, np.arange(6)).tolist() == [1, 0, 0, 0, 0, 0]
    assert binomial(5, 1.0, np.arange(6)).tolist() == [0, 0, 0, 0, 0, 1]
    assert binomial(3, 0.25, np.arange(4)) * 64 == pytest.approx([27, 27, 9, 1])
    assert hypergeometric(5, 2, 3, np.arange(4)) * 10 == pytest.approx([1, 6, 3, 0])


# --- Threats ---


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gamma": 0.33, "dropout": 0.29}, Threat(100, 33, 29 + SPARE, 100)),
        ({"gamma": 0.1, "dropout": 0.0, "population": 1000}, Threat(100, 100, SPARE, 1000)),
        ({"dropout": 0.0, "dropout_model": "bernoulli"}, Threat(100, 10, SPARE, 100)),
    ],
)
def test_fractions_are_of_the_population_and_of_the_round(options, expected):
    assert Threat.of(Parameters(100, 10, **options)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("devices", "rate", "bits"), [(100, 0.3, 20), (7, 0.4, 3)])
def test_so_many_drop_out_by_chance_and_one_besides_but_seldom_more(devices, rate, bits):
    parameters = Parameters(
        devices, 10, dropout=rate, dropout_model="bernoulli", correctness_bits=bits
    )
    theta = Fraction(repr(rate))
    chances = [
        comb(devices, gone) * theta**gone * (1 - theta) ** (devices - gone)
        for gone in range(devices + 1)
    ]
    most = least_exceeded(chances, Fraction(1, 2**bits)) + SPARE
    assert (Threat.of(parameters).dropped, Threat.of(parameters).rate) == (most, rate)


@pytest.mark.parametrize("who", [(8, 3, 2, 8), (8, 3, 2, 20), (5, 0, 1, 9), (6, 9, 0, 10)])
def test_distributions_are_those_of_all_draws(who):
    devices, colluding, dropped, population = who
    threat = Threat(*who)
    for count in range(1, devices):
        near = [chance(population - 1, colluding, count, [c]) for c in range(count + 1)]
        among = [chance(population, colluding, count, [c]) for c in range(count + 1)]
        # Of a device that dropped out, or would.
        left = devices - max(dropped, 1)
        alive = [chance(devices - 1, left, count, [c]) for c in range(count + 1)]
        for found, exact in (
            (threat.colluding_among(count), among),
            (threat.colluding_neighbours(count), near),
            (threat.surviving_neighbours(count), alive),
        ):
            assert found == pytest.approx(np.array(exact, float), rel=1e-12)
        assert threat.more_colluding(count, 1) == pytest.approx(float(sum(among[2:])), abs=1e-12)


@pytest.mark.parametrize("draws", [1, 100])
def test_no_set_has_more_colluders_or_dropouts_but_seldom(draws):
    for who, count in (((100, 33, 30, 100), 43), ((100, 333, 30, 1000), 100)):
        devices, colluding, dropped, population = who
        among = [chance(population, colluding, count, [c]) for c in range(count + 1)]
        most = least_exceeded(among, Fraction(1, 2**40 * draws))
        assert Threat(*who).most_colluding(count, 2.0**-40, draws) == most
        gone = [chance(devices, dropped - SPARE, count, [c]) for c in range(count + 1)]
        most = min(count, least_exceeded(gone, Fraction(1, 2**20)) + SPARE)
        assert Threat(*who).most_dropped(count, 2.0**-20) == most
    assert Threat(100, 33, 30, 100).most_colluding(100, 2.0**-40) == 33


def test_those_who_have_dropped_out_are_counted_not_expected():
    threat = Threat(10, 2, 6, 10, rate=0.3).with_dropped(1)

    assert threat == Threat(10, 2, 1, 10)
    assert threat.surviving_neighbours(4) == pytest.approx([0, 0, 0, 0, 1])
    with pytest.raises(UsageError, match="a round has 6 of 5 devices"):
        Threat(6, 0, 0, 5)


# --- Rings ---


def rings(devices, colluding, dropped, population):
    """Yield every ring: the devices are drawn from the population, colluders stay, honest drop."""
    for here in range(max(0, devices - population + colluding), min(colluding, devices) + 1):
        ways = comb(colluding, here) * comb(population - colluding, devices - here)
        likely = Fraction(ways, comb(population, devices)) / comb(devices, here)
        for bad in combinations(range(devices), here):
            honest = [place for place in range(devices) if place not in bad]
            leaving = min(dropped, len(honest))
            for gone in combinations(honest, leaving):
                yield likely / comb(len(honest), leaving), {*bad}, {*gone}


def around(places, place, devices, degree):
    """Return how many of a place's neighbours are among some places."""
    if degree == devices - 1:
        return len(places - {place})
    near = {(place + k) % devices for k in range(-degree // 2, degree // 2 + 1)} - {place}
    return len(places & near)


SMALL = [(9, 3, 2, 9), (8, 0, 3, 8), (8, 4, 2, 13), (7, 5, 3, 9), (7, 1, 2, 40)]


@pytest.mark.parametrize("who", SMALL)
@pytest.mark.parametrize("degree", [2, 4, 6])
def test_bounds_are_the_expected_numbers_of_failures_over_all_rings(who, degree):
    """So each is at least the probability of any, and not above what the union bound costs.

    Bounds count devices that may be honest, and that may drop out, as if they were and did. Of a
    device's neighbours t + 2 must survive: of t + 1, one that answers falsely is as consistent
    with t - 1 others as the one that is then left out.
    """
    devices, colluding, dropped, population = who
    complete, half = degree == devices - 1, degree // 2
    everybody = {*range(devices)}
    opened, stuck, cut = np.zeros((3, degree + 2))
    for likely, bad, gone in rings(*who):
        colluders = [around(bad, place, devices, degree) for place in everybody - bad]
        alive = [around(everybody - gone, place, devices, degree) for place in gone]
        away = [
            sum((start + k) % devices in bad | gone for k in range(half)) for start in everybody
        ]
        for t in range(1, degree + 2):
            # With all others as neighbours, all honest devices have the same ones: one event.
            shared = sum(count >= t for count in colluders)
            opened[t] += float(likely) * (min(shared, 1) if complete else shared)
            stuck[t] += float(likely) * sum(count < t + 2 for count in alive)
        for expelled in range(min(3, half + 1)):
            cut[expelled] += float(likely) * sum(count >= half - expelled for count in away)
    honest = devices if population > devices else devices - colluding
    counted = 1.0 if complete else honest / (devices * (1 - colluding / population))
    for t in range(1, degree + 2):
        found = failures(Threat(*who), degree, t)
        assert found.revealed == pytest.approx(min(1.0, counted * opened[t]), rel=1e-9, abs=1e-12)
        if dropped and population == devices:
            times = (1 if complete else devices) / dropped
            assert found.stuck == pytest.approx(min(1.0, times * stuck[t]), rel=1e-9, abs=1e-12)
        for expelled in range(min(3, half + 1)):
            split = failures(Threat(*who), degree, t, expelled).split
            limit = 0.0 if complete else min(1.0, cut[expelled])
            assert split == pytest.approx(limit, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("devices", [50, 1000])
@pytest.mark.parametrize(("gamma", "dropout"), [(0.05, 0.3), (0.3, 0.2)])
@pytest.mark.parametrize(("drawn_from", "rate"), [(1, None), (10, None), (1, 0.1)])
def test_the_smallest_degree_that_keeps_all_promises_is_chosen(
    devices, gamma, dropout, drawn_from, rate
):
    population = drawn_from * devices
    threat = Threat(devices, int(gamma * population), int(dropout * devices), population, rate)
    chosen = choose(threat, 30, 15)

    def kept(degree, threshold):
        found = failures(threat, degree, threshold)
        return found.revealed + found.split <= 2.0**-30 and found.stuck <= 2.0**-15

    if chosen.degree < devices - 1:
        assert kept(chosen.degree, chosen.threshold)
        assert not kept(chosen.degree, chosen.threshold + 1)
        smaller = chosen.degree - 2
    else:
        assert chosen.threshold == devices // 2 + 1
        smaller = (devices - 2) // 2 * 2
    # A threshold of 1 would make every share the secret.
    assert not any(kept(smaller, t) for t in range(2, smaller + 1))


@pytest.mark.parametrize("least", [39, 60, 61, 98, 99])
def test_a_degree_that_is_needed_for_other_reasons_is_the_smallest(least):
    """A round of these 100 is safe with 60 neighbours; with more, if they are asked for."""
    threat = Threat(100, 10, 30, 100)
    chosen = choose(threat, 40, 20, least)
    if least <= 60:
        assert chosen == choose(threat, 40, 20)
    else:
        assert chosen.degree == (least + least % 2 if least <= 98 else 99)
    assert failures(threat, 99, 51).split == 0
    assert [0, 1] == [failures(threat, 99, t).stuck for t in (68, 69)]


def test_degrees_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="cannot have 5 neighbours each"):
        failures(Threat(100, 10, 10, 100), 5, 2)


# --- Cohorts ---


def of_cohorts(devices, here, cohort, fewer):
    """Return the expected number of a ring's cohorts with fewer among `here` devices than that."""
    total = 0
    for places in combinations(range(devices), here):
        for first in range(devices):
            inside = {(first + k) % devices for k in range(cohort)}
            total += len(inside & {*places}) < fewer
    return Fraction(total, comb(devices, here))


@pytest.mark.parametrize("who", [(8, 2, 3, 8), (8, 3, 5, 8), (7, 4, 2, 12), (8, 1, 0, 30)])
@pytest.mark.parametrize("cohort", [1, 3, 5])
def test_colluders_stay_and_the_honest_drop_out_of_cohorts(who, cohort):
    devices, colluding, dropped, population = who
    for floor in (1, 2, 3):
        expected = Fraction(0)
        for bad in range(devices + 1):
            honest = max(0, devices - bad - dropped)
            likely = chance(population, colluding, devices, [bad])
            expected += likely * min(1, of_cohorts(devices, honest, cohort, floor))
        found = below_floor(Threat(*who), cohort, floor)
        assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-15)
    for least in range(cohort + 2):
        expected = of_cohorts(devices, devices - dropped, cohort, least)
        found = refused(Threat(*who), cohort, least)
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
    near = threat.surviving_neighbours(4)
    assert near == pytest.approx(binomial(3, 0.7, np.arange(5)))


def test_so_many_survive_in_every_cohort_and_one_more_is_not_sure():
    for threat in (Threat(100, 10, 30, 100), Threat(50, 0, 21, 50, rate=0.2)):
        for failure in (0.5, 2.0**-20):
            least = fewest_survivors(threat, 30, failure)
            assert refused(threat, 30, least) <= failure < refused(threat, 30, least + 1)


def test_sizes_are_rounded_as_written():
    assert [cohort_size(*which) for which in ((50, 0.25), (50, 0.29), (3, 0.1))] == [13, 15, 1]
    assert [count_of(Fraction(1, 3), 99), count_of(0.29, 100)] == [33, 29]
    with pytest.raises(UsageError, match="not between 0 and 1"):
        count_of(Fraction(3, 2), 10)
