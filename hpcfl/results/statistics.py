"""Percentiles, intervals and rank tests of samples; no distribution of theirs is assumed.

Times of rounds are skewed and have several modes, so everything here goes by ranks. No sample is
ever left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
# Up to this many samples, ranks of the median's interval come from the binomial distribution.
EXACT_MEDIAN = 1000
# Up to this many samples together, the rank test counts; the counts fit 64 bits up to 66.
EXACT_TEST = 50
# Launches differ, more than their rounds do, where the rank test gives at most this probability.
DIFFERENT = 0.05
# Up to this many, all pairs' differences are held at once: 128 MiB.
_PAIRS = 1 << 24


@dataclass(frozen=True)
class Percentiles:
    """Where the samples of a quantity lie, in their unit; all NaN if there are none.

    With fewer than 20 samples the 95th percentile lies between the two largest.
    """

    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, samples: ArrayLike) -> Percentiles:
        """Return the percentiles of samples of any shape.

        Between two samples the value is interpolated linearly (method 7 of Hyndman and Fan,
        NumPy's default).
        """
        values = np.asarray(samples, np.float64)
        if values.size == 0:
            return cls(np.nan, np.nan, np.nan)
        median, p95 = percentiles(values, (50, 95))
        return cls(median, p95, float(values.max()))


def percentiles(samples: ArrayLike, percents: Sequence[float]) -> list[float]:
    """Return percentiles of samples, interpolated linearly; NaN if one is NaN or there is none."""
    ordered = np.sort(np.asarray(samples, np.float64), axis=None)
    if ordered.size == 0 or np.isnan(ordered[-1]):
        return [math.nan] * len(percents)
    # A fifth of the time that np.percentile takes for a few samples, and reports ask for many.
    places = np.asarray(percents) / 100 * (ordered.size - 1)
    found: list[float] = np.interp(places, np.arange(ordered.size), ordered).tolist()
    return found


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends included; NaN where there are too few samples for it."""

    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there were enough samples."""
        return not math.isnan(self.low)

    def within(self, share: float, centre: float) -> bool:
        """Return whether both ends are within a share (0.05 for 5 %) of a centre above 0."""
        reach = share * centre
        return self.known and centre - self.low <= reach and self.high - centre <= reach


UNKNOWN = Interval(math.nan, math.nan)


def median_interval(samples: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return a confidence interval of the median whose ends are two of the independent samples.

    The ends are the k-th smallest and the k-th largest sample, with the largest k for which a
    binomial variable of n trials of probability 1/2 is below k with a probability of at most half
    of what the confidence leaves (Hahn and Meeker 1991, section 5.2). Beyond `EXACT_MEDIAN` samples
    k is floor((n - z sqrt(n)) / 2) (Hoefler and Belli 2015, section 3.1.3). It covers the median
    with the given probability or more, and is unknown with too few samples: 95 % takes 6.
    """
    values = np.sort(np.asarray(samples, np.float64), axis=None)
    rank = _median_rank(values.size, confidence)
    if rank < 1:
        return UNKNOWN
    return Interval(float(values[rank - 1]), float(values[-rank]))


@functools.lru_cache
def _median_rank(count: int, confidence: float) -> int:
    """Return which smallest and which largest sample the interval ends at; 0 if there is none."""
    tail = (1 - confidence) / 2
    if count > EXACT_MEDIAN:
        return math.floor((count - NormalDist().inv_cdf(1 - tail) * math.sqrt(count)) / 2)
    # Counted in whole numbers: 2^count is beyond what floats hold exactly.
    limit = int(Fraction(tail) * 2**count)
    below, rank = 1, 0
    while below <= limit:
        rank += 1
        below += math.comb(count, rank)
    return rank


@dataclass(frozen=True)
class RankTest:
    """The outcome of a two-sided rank test."""

    # Mann and Whitney's U: in how many pairs the second sample is larger, ties counting half; or
    # Kruskal and Wallis's H.
    statistic: float
    # Probability of a result at least as extreme where all samples come from one distribution.
    p_value: float


def mann_whitney(first: ArrayLike, second: ArrayLike) -> RankTest:
    """Test whether one of two groups of independent samples tends to be larger; U of the second.

    Mann and Whitney 1947. Up to `EXACT_TEST` samples together, the probability is found by
    counting, among all ways to divide the samples, ties included as they are. With more it is the
    normal approximation with corrections for ties and continuity. An empty group is a ValueError.
    """
    x, y = _flat(first), _flat(second)
    doubled, ties = _doubled_ranks(np.concatenate([x, y]))
    n, m = x.size, y.size
    rank_sum = int(doubled[n:].sum())
    u = rank_sum / 2 - m * (m + 1) / 2
    if n + m <= EXACT_TEST:
        ways = _ways(doubled, m)
        lower, upper = int(ways[: rank_sum + 1].sum()), int(ways[rank_sum:].sum())
        return RankTest(u, min(1.0, 2 * min(lower, upper) / math.comb(n + m, m)))
    spread = _u_deviation(n, m, ties)
    if spread == 0:
        return RankTest(u, 1.0)
    z = max(0.0, abs(u - n * m / 2) - 0.5) / spread
    return RankTest(u, math.erfc(z / math.sqrt(2)))


def least_p_value(n: int, m: int) -> float:
    """Return the least p value that `mann_whitney` can give for so many samples without ties."""
    return min(1.0, 2 / math.comb(n + m, n))


def kruskal_wallis(groups: Sequence[ArrayLike]) -> RankTest:
    """Test whether one of several groups of samples tends to be larger (Kruskal and Wallis 1952).

    Two groups are tested by `mann_whitney`; for more the probability is that of the chi-squared
    distribution, good from about 5 samples a group on. Fewer than two groups, and an empty one, are
    a ValueError.
    """
    samples = [_flat(group) for group in groups]
    if len(samples) < 2:
        raise ValueError("a comparison takes two groups")
    if len(samples) == 2:
        return mann_whitney(*samples)
    doubled, ties = _doubled_ranks(np.concatenate(samples))
    count = doubled.size
    correction = 1 - float((ties**3 - ties).sum()) / (count**3 - count)
    if correction == 0:
        return RankTest(0.0, 1.0)
    parts = np.split(doubled / 2, np.cumsum([group.size for group in samples])[:-1])
    between = sum(part.sum() ** 2 / part.size for part in parts)
    h = (12 / (count * (count + 1)) * between - 3 * (count + 1)) / correction
    return RankTest(float(h), _chi_squared_tail(max(0.0, float(h)), len(samples) - 1))


@dataclass(frozen=True)
class Shift:
    """By how much the second of two groups of samples is larger."""

    estimate: float  # median of the differences of all pairs, second minus first
    interval: Interval  # its ends are differences of pairs


def shift(first: ArrayLike, second: ArrayLike, confidence: float = CONFIDENCE) -> Shift:
    """Estimate the shift between two groups of samples (Hodges and Lehmann 1963).

    The interval holds the shifts that the rank test would not reject, and covers the shift with the
    given probability or more (about this beyond `EXACT_TEST` samples). It takes the two
    distributions to have one shape and to differ in their place; it is unknown with too few
    samples: 95 % takes 4 and 4, or 3 and 5. An empty group is a ValueError.
    """
    x, y = np.sort(_flat(first)), np.sort(_flat(second))
    pairs = x.size * y.size
    rank = _shift_rank(x.size, y.size, confidence)
    places = [(pairs - 1) // 2, pairs // 2, *([rank - 1, pairs - rank] if rank >= 1 else [])]
    found = _differences_at(x, y, places)
    interval = Interval(found[2], found[3]) if rank >= 1 else UNKNOWN
    return Shift((found[0] + found[1]) / 2, interval)


@functools.lru_cache
def _shift_rank(n: int, m: int, confidence: float) -> int:
    """Return which smallest and largest difference the interval ends at; 0 if there is none."""
    tail = (1 - confidence) / 2
    if n + m <= EXACT_TEST:
        lowest = m * (m + 1)
        ways = _ways(2 * np.arange(1, n + m + 1), m)[lowest::2]
        below = np.cumsum(ways) / math.comb(n + m, m)
        # A difference or two within rounding of the tail may not widen the interval.
        return int((below <= tail * (1 + 1e-12)).sum())
    spread = _u_deviation(n, m, np.ones(n + m))
    return max(0, math.floor(n * m / 2 + 0.5 - NormalDist().inv_cdf(1 - tail) * spread))


def _differences_at(
    x: NDArray[np.float64], y: NDArray[np.float64], places: Sequence[int]
) -> list[float]:
    """Return the differences y_j - x_i that are at these places, from 0, in order of size."""
    if x.size * y.size <= _PAIRS:
        differences = np.subtract.outer(y, x).ravel()
        differences.partition(sorted(set(places)))
        return [float(differences[place]) for place in places]
    return [_difference_at(x, y, place) for place in places]


def _difference_at(x: NDArray[np.float64], y: NDArray[np.float64], place: int) -> float:
    """Return the same by bisection, without holding all of them; to the last but a few bits."""
    low, high = float(y[0] - x[-1]), float(y[-1] - x[0])
    for _ in range(100):
        middle = (low + high) / 2
        if int(np.searchsorted(y, x + middle, side="right").sum()) > place:
            high = middle
        else:
            low = middle
    return high


def _flat(samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, np.float64).ravel()
    if values.size == 0:
        raise ValueError("a group has no samples")
    return values


def _doubled_ranks(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return twice the rank of every value, mean ranks for ties, and the sizes of all ties."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[inverse], counts.astype(np.float64)


def _ways(doubled_ranks: NDArray[np.int64], chosen: int) -> NDArray[np.int64]:
    """Return in how many ways `chosen` of the ranks can add up to every sum."""
    ways = np.zeros((chosen + 1, int(doubled_ranks.sum()) + 1), np.int64)
    ways[0, 0] = 1
    for rank in doubled_ranks.tolist():
        # A rank is chosen once, so what is added are the ways before it.
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    return ways[chosen]


def _u_deviation(n: int, m: int, ties: NDArray[np.float64]) -> float:
    """Return the standard deviation of U, corrected for ties."""
    count = n + m
    tied = float((ties**3 - ties).sum()) / (count * (count - 1))
    return math.sqrt(max(0.0, n * m / 12 * (count + 1 - tied)))


def _chi_squared_tail(value: float, degrees: int) -> float:
    """Return the probability that a chi-squared variable exceeds a value (integer degrees)."""
    half = value / 2
    if degrees % 2:
        tail, term, at = math.erfc(math.sqrt(half)), 2 * math.sqrt(half / math.pi), 1.5
    else:
        tail, term, at = 0.0, 1.0, 1.0
    # Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1), from a = 1/2 or 0 up to degrees / 2.
    for _ in range(degrees // 2):
        tail += term * math.exp(-half)
        term *= half / at
        at += 1
    return min(1.0, tail)
