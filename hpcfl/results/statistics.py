"""Percentiles, intervals and rank tests of samples; no distribution of theirs is assumed.

Times of rounds are skewed and have several modes, so everything here goes by ranks. No sample is
ever left out. Tests and tails are SciPy's, which is imported when one is asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
PERCENTILES = ("median", "p95", "max")
# Up to this many samples together, without ties, the rank test is exact.
EXACT_TEST = 50
# Launches differ, more than their rounds do, where the rank test gives at most this probability.
DIFFERENT = 0.05


def median(samples: ArrayLike) -> float:
    """Return the median of samples of any shape; NaN if there are none."""
    values = np.asarray(samples, np.float64)
    return float(np.median(values)) if values.size else math.nan


def percentiles(name: str, samples: ArrayLike) -> dict[str, float]:
    """Return ``NAME_median``, ``NAME_p95`` and ``NAME_max`` of samples; all NaN if there are none.

    Between two samples the value is interpolated linearly.
    """
    values = np.asarray(samples, np.float64)
    found = np.percentile(values, (50, 95, 100)).tolist() if values.size else [math.nan] * 3
    return {f"{name}_{which}": one for which, one in zip(PERCENTILES, found, strict=True)}


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


def _ends(ordered: NDArray[np.float64], rank: int) -> Interval:
    """Return the interval from the k-th smallest to the k-th largest value."""
    return UNKNOWN if rank < 1 else Interval(float(ordered[rank - 1]), float(ordered[-rank]))


def median_interval(samples: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return a confidence interval of the median whose ends are two of the independent samples.

    The ends are the k-th smallest and the k-th largest sample, with the largest k for which a
    binomial variable of n trials of probability 1/2 is below k with a probability of at most half
    of what the confidence leaves (Hahn and Meeker 1991, section 5.2). It covers the median with the
    given probability or more, and is unknown with too few samples: 95 % takes 6.
    """
    values = np.sort(np.asarray(samples, np.float64), axis=None)
    return _ends(values, _median_rank(values.size, confidence))


@functools.lru_cache
def _median_rank(count: int, confidence: float) -> int:
    """Return which smallest and which largest sample the interval ends at; 0 if there is none."""
    from scipy.stats import binom

    tail = (1 - confidence) / 2
    rank = int(binom.ppf(tail, count, 0.5)) if count else 0
    # Where fewer or as many have just the tail's probability, one more may be left out.
    return rank + (count > 0 and binom.cdf(rank, count, 0.5) <= tail * (1 + 1e-9))


def mann_whitney(first: ArrayLike, second: ArrayLike) -> tuple[float, float]:
    """Test whether one of two groups of independent samples tends to be larger.

    Returns U of the second, in how many pairs it is larger, and the two-sided p value (Mann and
    Whitney 1947): exact up to `EXACT_TEST` samples together without ties, else by the normal
    approximation with corrections for ties and continuity.
    """
    from scipy.stats import mannwhitneyu

    x, y = np.ravel(first), np.ravel(second)
    both = np.concatenate([x, y])
    if np.ptp(both) == 0:
        return x.size * y.size / 2, 1.0
    exact = both.size <= EXACT_TEST and np.unique(both).size == both.size
    found = mannwhitneyu(y, x, method="exact" if exact else "asymptotic")
    return float(found.statistic), float(found.pvalue)


def least_p_value(n: int, m: int) -> float:
    """Return the least p value of `mann_whitney` for n and m samples without ties."""
    return min(1.0, 2 / math.comb(n + m, n))


def launches_p_value(launches: Sequence[NDArray[np.float64]]) -> float | None:
    """Return the probability of launches whose samples differ so much, were they alike.

    By the rank test of Kruskal and Wallis (1952); None with fewer than two launches that have
    samples.
    """
    from scipy.stats import kruskal

    groups = [values for values in launches if values.size]
    if len(groups) < 2:
        return None
    return 1.0 if np.ptp(np.concatenate(groups)) == 0 else float(kruskal(*groups).pvalue)


def shift(
    first: ArrayLike, second: ArrayLike, confidence: float = CONFIDENCE
) -> tuple[float, Interval]:
    """Estimate by how much the second of two groups of samples is larger.

    Returns the median of the differences of all pairs (Hodges and Lehmann 1963), and the interval
    of the shifts that the rank test would not reject. It takes the two distributions to have one
    shape and to differ in their place, and is unknown with too few samples: 95 % takes 4 and 4.
    """
    x, y = np.ravel(first), np.ravel(second)
    differences = np.sort(np.subtract.outer(y, x), axis=None)
    interval = _ends(differences, _shift_rank(x.size, y.size, confidence))
    return float(np.median(differences)), interval


@functools.lru_cache
def _shift_rank(n: int, m: int, confidence: float) -> int:
    """Return which smallest and largest difference the interval ends at; 0 if there is none."""
    from scipy.stats import norm

    tail = (1 - confidence) / 2
    if n + m > EXACT_TEST:
        deviation = math.sqrt(n * m * (n + m + 1) / 12)
        return max(0, math.floor(n * m / 2 + 0.5 + norm.ppf(tail) * deviation))
    # In how many ways m of n + m ranks give each U, which grows by j where one is chosen above j
    # of the others.
    ways = np.zeros((m + 1, n * m + 1))
    ways[0, 0] = 1
    for rank in range(n + m):
        for chosen in range(min(m, rank + 1), max(0, rank - n), -1):
            above = rank - (chosen - 1)
            ways[chosen, above:] += ways[chosen - 1, : ways.shape[1] - above]
    below = np.cumsum(ways[m]) / math.comb(n + m, m)
    # A difference or two within rounding of the tail may not widen the interval.
    return int((below <= tail * (1 + 1e-12)).sum())
