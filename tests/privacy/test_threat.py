"""Who colludes and who drops out, against counting with fractions."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest

from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.privacy.threat import SPARE, Threat


def hypergeometric(total, marked, drawn, hits):
    return Fraction(comb(marked, hits) * comb(total - marked, drawn - hits), comb(total, drawn))


def least_exceeded(chances, failure):
    """Return the least number that is exceeded with at most a probability."""
    return next(n for n in range(len(chances)) if sum(chances[n + 1 :]) <= failure)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gamma": 0.33, "dropout": 0.29}, Threat(100, 33, 29 + SPARE, 100)),
        ({"gamma": 0.1, "dropout": 0.0, "population": 1000}, Threat(100, 100, SPARE, 1000)),
        ({"gamma": 0.007, "dropout": 0.3, "population": 1000}, Threat(100, 7, 30 + SPARE, 1000)),
        ({"dropout": 0.0, "dropout_model": "bernoulli"}, Threat(100, 10, SPARE, 100)),
    ],
)
def test_fractions_are_of_the_population_and_of_the_round(options, expected):
    assert Threat.of(Parameters(100, 10, **options)) == expected  # type: ignore[arg-type]


def test_one_device_may_always_vanish_besides_the_planned_ones():
    assert SPARE == 1
    assert [1, 1, 6] == [Threat.of(Parameters(n, 10, dropout=0.0)).dropped for n in (2, 7)] + [
        Threat.of(Parameters(12, 10, dropout=0.49)).dropped
    ]


@pytest.mark.parametrize(("devices", "rate", "bits"), [(100, 0.3, 20), (20, 0.05, 10), (7, 0.4, 3)])
def test_so_many_drop_out_by_chance_and_one_besides_but_seldom_more(devices, rate, bits):
    parameters = Parameters(
        devices, 10, dropout=rate, dropout_model="bernoulli", correctness_bits=bits
    )
    theta = Fraction(repr(rate))
    chances = [
        comb(devices, gone) * theta**gone * (1 - theta) ** (devices - gone)
        for gone in range(devices + 1)
    ]
    found = Threat.of(parameters)

    most = least_exceeded(chances, Fraction(1, 2**bits)) + SPARE
    assert (found.dropped, found.rate) == (most, rate)


@pytest.mark.parametrize("who", [(8, 3, 2, 8), (8, 3, 2, 20), (5, 0, 1, 9), (6, 9, 0, 10)])
def test_distributions_are_those_of_all_draws(who):
    devices, colluding, dropped, population = who
    threat = Threat(*who)
    for count in range(1, devices):
        numbers = range(count + 1)
        among = [hypergeometric(population, colluding, count, c) for c in numbers]
        assert threat.colluding_among(count) == pytest.approx(np.array(among, float), rel=1e-12)
        near = [hypergeometric(population - 1, colluding, count, c) for c in numbers]
        assert threat.colluding_neighbours(count) == pytest.approx(np.array(near, float), rel=1e-12)
        # Of a device that dropped out, or would.
        left = devices - max(dropped, 1)
        alive = [hypergeometric(devices - 1, left, count, c) for c in numbers]
        assert threat.surviving_neighbours(count) == pytest.approx(
            np.array(alive, float), rel=1e-12
        )


@pytest.mark.parametrize("who", [(6, 2, 1, 6), (6, 2, 2, 8), (5, 0, 2, 5), (5, 4, 3, 7)])
@pytest.mark.parametrize("chosen", [0, 1, 2, 3])
def test_all_in_a_row_are_gone_where_who_knows_their_places_can_see_to_it(who, chosen):
    """Over all ways in which some collude and some drop out, and all choices of whom to remove."""
    devices, colluding, dropped, population = who
    for count in range(1, devices + 1):
        row = {*range(count)}
        total = gone = Fraction(0)
        for bad in combinations(range(population), colluding):
            # The devices of the round are the first of the population, around the ring.
            honest = [place for place in range(devices) if place not in bad]
            ways = [*combinations(honest, min(dropped, len(honest)))]
            for away in ways:
                left = [place for place in range(devices) if place not in (*bad, *away)]
                removals = combinations(left, min(chosen, len(left)))
                seen = any(row <= {*bad, *away, *removed} for removed in removals)
                gone += Fraction(seen, len(ways))
                total += Fraction(1, len(ways))
        expected = pytest.approx(float(gone / total), rel=1e-12, abs=1e-15)
        assert Threat(*who).all_gone(count, chosen) == expected


@pytest.mark.parametrize(("who", "count"), [((100, 33, 30, 100), 43), ((100, 333, 30, 1000), 100)])
@pytest.mark.parametrize("draws", [1, 100])
def test_no_set_has_more_colluders_but_seldom(who, count, draws):
    _, colluding, _, population = who
    chances = [hypergeometric(population, colluding, count, c) for c in range(count + 1)]
    expected = least_exceeded(chances, Fraction(1, 2**40 * draws))

    assert Threat(*who).most_colluding(count, 2.0**-40, draws) == expected


def test_of_all_devices_as_many_collude_as_there_are():
    assert Threat(100, 33, 30, 100).most_colluding(100, 2.0**-40) == 33


def test_those_who_have_dropped_out_are_counted_not_expected():
    threat = Threat(10, 2, 6, 10, rate=0.3).with_dropped(1)

    assert threat == Threat(10, 2, 1, 10)
    assert threat.surviving_neighbours(4) == pytest.approx([0, 0, 0, 0, 1])


def test_a_threat_says_who_colludes():
    assert str(Threat(100, 10, 30, 100)) == "10 devices"
    assert str(Threat(100, 100, 30, 1000)) == "100 of 1000 devices, from which each round draws,"


@pytest.mark.parametrize(("devices", "population"), [(1, 5), (6, 5)])
def test_rounds_that_cannot_be_are_refused(devices, population):
    with pytest.raises(UsageError, match=f"{devices} devices of {population} are in a round"):
        Threat(devices, 0, 0, population)
