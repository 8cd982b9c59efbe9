"""Percentiles, intervals and rank tests: known values, and those of other implementations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.results import statistics
from hpcfl.results.statistics import (
    Interval,
    Percentiles,
    kruskal_wallis,
    least_p_value,
    mann_whitney,
    median_interval,
    percentiles,
    shift,
)

scipy_stats = pytest.importorskip("scipy.stats")

samples_with_ties = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=7)
samples_apart = st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=60)


def test_percentiles_of_known_samples():
    # 21 samples: the 95th percentile is exactly the 20th; 4 samples: it is interpolated.
    assert Percentiles.of(range(20, -1, -1)) == Percentiles(median=10, p95=19, max=20)
    assert Percentiles.of([4.0, 1.0, 3.0, 2.0]) == Percentiles(2.5, pytest.approx(3.85), 4.0)
    assert Percentiles.of([7.5]) == Percentiles(7.5, 7.5, 7.5)
    nothing = Percentiles.of(np.zeros((0, 3)))
    assert all(math.isnan(value) for value in (nothing.median, nothing.p95, nothing.max))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(samples, percent):
    assert percentiles([samples], [percent]) == pytest.approx([np.percentile(samples, percent)])
    assert math.isnan(percentiles([*samples, math.nan], [percent])[0])


def test_no_outlier_is_dropped():
    assert percentiles([1, 2, 3, 10**9], (0, 50, 100)) == [1, 2.5, 10**9]
    assert median_interval([1, 2, 3, 4, 5, 10**9]).high == 10**9


def test_the_interval_of_the_median_has_the_textbooks_ranks():
    # Both tails are 1/64 = 1.6 %; five samples leave 1/32 = 3.1 % > 2.5 %.
    assert median_interval([3, 1, 2, 6, 5, 4]) == Interval(1, 6)
    assert not median_interval(range(5)).known
    assert not median_interval([]).known
    for count, low, high in ((10, 2, 9), (20, 6, 15), (50, 18, 33)):
        assert median_interval(range(1, count + 1)) == Interval(low, high)
    # floor((10^4 - 1.96 * 100) / 2) = 4902: many samples use the wider normal ranks.
    assert median_interval(range(1, 10**4 + 1)) == Interval(4902, 5099)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_ranks_are_the_narrowest_of_the_binomial_distribution(confidence):
    for count in (*range(1, 80), 500, 1000):
        interval = median_interval(range(1, count + 1), confidence)
        rank = int(interval.low) if interval.known else 0
        tail = (1 - confidence) / 2
        below = [float(scipy_stats.binom.cdf(k - 1, count, 0.5)) for k in (rank, rank + 1)]
        assert below[0] <= tail * (1 + 1e-9) < below[1], count
        if rank:
            assert interval.high == count + 1 - rank


def test_within_wants_both_ends_and_a_known_interval():
    assert Interval(9.5, 10.5).within(0.05, 10)
    assert not Interval(9.4, 10.1).within(0.05, 10)
    assert not Interval(9.9, 10.6).within(0.05, 10)
    assert not median_interval([1, 1]).within(0.5, 1)


def counted(first, second):
    """Return U and its p value by trying every division of the samples."""

    def u(x, y):
        return sum((b > a) + 0.5 * (a == b) for a in x for b in y)

    everything, found, seen = [*first, *second], u(first, second), []
    for chosen in itertools.combinations(range(len(everything)), len(second)):
        rest = [everything[i] for i in range(len(everything)) if i not in chosen]
        seen.append(u(rest, [everything[i] for i in chosen]))
    lower = sum(value <= found for value in seen)
    upper = sum(value >= found for value in seen)
    return found, min(1.0, 2 * min(lower, upper) / len(seen))


@given(samples_with_ties, samples_with_ties)
def test_small_samples_are_counted_ties_included(first, second):
    if len(first) + len(second) > 9:
        first, second = first[:5], second[:4]
    test = mann_whitney(first, second)

    assert (test.statistic, pytest.approx(test.p_value, rel=1e-12)) == counted(first, second)
    assert mann_whitney(second, first).p_value == pytest.approx(test.p_value, rel=1e-12)


def assert_same(test, expected):
    assert test.statistic == pytest.approx(expected.statistic, rel=1e-9)
    assert test.p_value == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 9), (20, 30), (25, 25), (49, 1)])
def test_the_exact_test_agrees_with_scipy(n, m):
    rng = np.random.default_rng(n)
    for place in (0.0, 0.4, 1.0):
        x, y = rng.normal(size=n), rng.normal(place, 1, m)
        assert_same(mann_whitney(x, y), scipy_stats.mannwhitneyu(y, x, method="exact"))


@pytest.mark.parametrize(("n", "m", "values"), [(30, 40, 8), (26, 25, 10**6), (300, 5, 3)])
def test_the_approximate_test_agrees_with_scipy(n, m, values):
    rng = np.random.default_rng(m)
    for place in (0, 1):
        x, y = rng.integers(0, values, n), rng.integers(0, values, m) + place
        assert_same(mann_whitney(x, y), scipy_stats.mannwhitneyu(y, x, method="asymptotic"))


@pytest.mark.parametrize("groups", [3, 4, 5])
def test_several_groups_agree_with_scipy(groups):
    rng = np.random.default_rng(groups)
    for step in (0, 1):
        samples = [rng.integers(0, 9, 5 + i) + step * i for i in range(groups)]
        assert_same(kruskal_wallis(samples), scipy_stats.kruskal(*samples))


def test_equal_samples_are_not_distinguishable_and_samples_apart_have_the_least_p_value():
    for count in (5, 40):
        assert mann_whitney([2.0] * count, [2.0] * count).p_value == 1
        assert kruskal_wallis([[2.0] * count] * 3).p_value == 1
    for n, m in ((3, 3), (3, 5), (6, 6)):
        found = mann_whitney(range(n), range(100, 100 + m)).p_value
        assert found == pytest.approx(least_p_value(n, m))


def test_two_groups_are_tested_as_a_pair_and_fewer_or_empty_ones_refused():
    assert kruskal_wallis([[1, 2, 3], [4, 5, 6]]) == mann_whitney([1, 2, 3], [4, 5, 6])
    with pytest.raises(ValueError, match="two groups"):
        kruskal_wallis([[1.0]])
    with pytest.raises(ValueError, match="no samples"):
        mann_whitney([], [1.0])


def test_the_shift_of_known_samples():
    # Differences 8, 9, 10, ... of {1..4} and {11..14}: median 10; of 4 and 4 all are needed.
    assert shift([1, 2, 3, 4], [11, 12, 13, 14]) == statistics.Shift(10.0, Interval(7.0, 13.0))
    assert not shift([1, 2, 3], [4, 5, 6]).interval.known
    assert shift([1, 2, 3], [4, 5, 6]).estimate == 3


@pytest.mark.parametrize(("n", "m"), [(4, 4), (6, 9), (25, 25), (40, 30)])
def test_the_shifts_interval_is_what_the_test_does_not_reject(n, m):
    rng = np.random.default_rng(n + m)
    x, y = rng.normal(size=n), rng.normal(0.7, 1, m)
    interval = shift(x, y).interval
    inside, step = interval.high - interval.low, 1e-9

    for outside in (interval.low - step, interval.high + step):
        assert mann_whitney(x + outside, y).p_value <= 0.05 * (1 + 1e-9)
    for within in (interval.low + step, interval.low + inside / 2, interval.high - step):
        assert mann_whitney(x + within, y).p_value > 0.05 * (1 - 1e-9)


@given(samples_apart, samples_apart, st.floats(-1e3, 1e3))
def test_the_shift_turns_around_and_moves_with_the_samples(x, y, by):
    there, back = shift(x, y), shift(y, x)
    moved = shift(x, np.array(y) + by)

    assert there.estimate == -back.estimate
    assert (there.interval.low, there.interval.high) == (-back.interval.high, -back.interval.low)
    assert there.interval.low <= there.estimate <= there.interval.high
    assert moved.estimate == pytest.approx(there.estimate + by, abs=1e-6)


def test_very_many_pairs_give_the_same_without_being_held(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.exponential(1, 300), rng.exponential(2, 200).round(2)
    whole = shift(x, y)
    monkeypatch.setattr(statistics, "_PAIRS", 10)
    bisected = shift(x, y)

    for one, other in (
        (bisected.estimate, whole.estimate),
        (bisected.interval.low, whole.interval.low),
        (bisected.interval.high, whole.interval.high),
    ):
        assert one == pytest.approx(other, rel=1e-12)
