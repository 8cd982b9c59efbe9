"""Percentiles, intervals and rank tests: known values, and what must hold of any samples."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.results.statistics import (
    Interval,
    launches_p_value,
    least_p_value,
    mann_whitney,
    median_interval,
    percentiles,
    shift,
)

samples_apart = st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=40)


def test_percentiles_of_known_samples():
    # 21 samples: the 95th percentile is exactly the 20th; 4 samples: it is interpolated.
    assert percentiles("x", range(20, -1, -1)) == {"x_median": 10, "x_p95": 19, "x_max": 20}
    assert [*percentiles("x", [4.0, 1.0, 3.0, 2.0]).values()] == pytest.approx([2.5, 3.85, 4.0])
    assert all(math.isnan(value) for value in percentiles("x", np.zeros((0, 3))).values())


def test_the_interval_of_the_median_has_the_textbooks_ranks():
    # Both tails are 1/64 = 1.6 %; five samples leave 1/32 = 3.1 % > 2.5 %.
    assert median_interval([3, 1, 2, 6, 5, 4]) == Interval(1, 6)
    assert not median_interval(range(5)).known
    assert not median_interval([]).known
    for count, low, high in ((10, 2, 9), (20, 6, 15), (50, 18, 33)):
        assert median_interval(range(1, count + 1)) == Interval(low, high)
    assert Interval(9.5, 10.5).within(0.05, 10)
    for low, high in ((9.4, 10.1), (9.9, 10.6), (math.nan, math.nan)):
        assert not Interval(low, high).within(0.05, 10)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_ranks_are_the_narrowest_of_the_binomial_distribution(confidence):
    for count in (*range(1, 80), 500, 5000):
        interval = median_interval(range(1, count + 1), confidence)
        rank = int(interval.low) if interval.known else 0
        tail = (1 - confidence) / 2
        below = [float(stats.binom.cdf(k - 1, count, 0.5)) for k in (rank, rank + 1)]
        assert below[0] <= tail * (1 + 1e-9) < below[1], count
        if rank:
            assert interval.high == count + 1 - rank


@given(st.permutations(range(8)), st.integers(1, 7))
def test_small_samples_without_ties_are_counted(values, size):
    first, second = values[:size], values[size:]

    def u(chosen):
        return sum(b > a for b in chosen for a in values if a not in chosen)

    seen = [u(chosen) for chosen in itertools.combinations(values, len(second))]
    found = u(second)
    tails = sum(one <= found for one in seen), sum(one >= found for one in seen)
    expected = min(1.0, 2 * min(tails) / len(seen))
    assert mann_whitney(first, second) == (found, pytest.approx(expected))


def test_equal_samples_are_not_distinguishable_and_samples_apart_have_the_least_p_value():
    for count in (5, 40):
        assert mann_whitney([2.0] * count, [2.0] * count)[1] == 1
        assert launches_p_value([np.full(count, 2.0)] * 3) == 1
    for n, m in ((3, 3), (3, 5), (6, 6)):
        found = mann_whitney(range(n), range(100, 100 + m))[1]
        assert found == pytest.approx(least_p_value(n, m))
    groups = np.arange(27.0).reshape(3, 9)
    assert launches_p_value([*groups, groups[0, :0]]) < 1e-4
    assert launches_p_value([*groups[:2]]) < 1e-3
    assert launches_p_value([groups[0], groups[0, :0]]) is None


@pytest.mark.parametrize(("n", "m"), [(4, 4), (6, 9), (25, 25), (40, 30)])
def test_the_shifts_interval_is_what_the_test_does_not_reject(n, m):
    rng = np.random.default_rng(n + m)
    x, y = rng.normal(size=n), rng.normal(0.7, 1, m)
    estimate, interval = shift(x, y)
    assert estimate == np.median(y[:, None] - x)
    inside, step = interval.high - interval.low, 1e-9

    for outside in (interval.low - step, interval.high + step):
        assert mann_whitney(x + outside, y)[1] <= 0.05 * (1 + 1e-9)
    for within in (interval.low + step, interval.low + inside / 2, interval.high - step):
        assert mann_whitney(x + within, y)[1] > 0.05 * (1 - 1e-9)


@given(samples_apart, samples_apart, st.floats(-1e3, 1e3))
def test_the_shift_turns_around_and_moves_with_the_samples(x, y, by):
    (there, interval), (back, turned) = shift(x, y), shift(y, x)
    moved, _ = shift(x, np.array(y) + by)

    assert there == -back
    assert (interval.low, interval.high) == (-turned.high, -turned.low)
    assert interval.low <= there <= interval.high
    assert moved == pytest.approx(there + by, abs=1e-6)
