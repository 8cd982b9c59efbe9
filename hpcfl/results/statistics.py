"""Percentiles, intervals and rank tests, none of which assumes a distribution of the samples.

Times of rounds are skewed and have several modes, so all methods here use ranks. No sample is ever
left out. SciPy computes the tests and tails, and is imported only when one is needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcfl.values import dataclass

CONFIDENCE = 0.95
PERCENTILES = ("median", "p95", "max")
# The rank test is exact up to this many samples in both groups together, if there are no ties.
EXACT_TEST = 50
# Launches count as differing more than their rounds do if the rank test's p value is at most this.
DIFFERENT = 0.05


def median(samples: ArrayLike) -> float:
    """Return the median of samples of any shape; NaN if there are none."""
    values = np.asarray(samples, np.float64)
    return float(np.median(values)) if values.size else math.nan


def percentiles(name: str, samples: ArrayLike) -> dict[str, float]:
    """Return ``NAME_median``, ``NAME_p95`` and ``NAME_max`` of samples; all NaN if there are none.

    A percentile between two samples is interpolated linearly.
    """
    values = np.asarray(samples, np.float64)
    found = np.percentile(values, (50, 95, 100)).tolist() if values.size else [math.nan] * 3
    return {f"{name}_{which}": one for which, one in zip(PERCENTILES, found, strict=True)}


@dataclass(frozen=True)
class Interval:
    """A confidence interval that includes both ends; NaN if there are too few samples."""

    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there were enough samples."""
        return not math.isnan(self.low)

    def within(self, share: float, centre: float) -> bool:
        """Return whether both ends differ from `centre` > 0 by at most `share` (0.05 for 5 %)."""
        reach = share * centre
        return self.known and centre - self.low <= reach and self.high - centre <= reach


UNKNOWN = Interval(math.nan, math.nan)


def _ends(ordered: NDArray[np.float64], rank: int) -> Interval:
    """Return the interval from the `rank`-th smallest to the `rank`-th largest value."""
    return UNKNOWN if rank < 1 else Interval(float(ordered[rank - 1]), float(ordered[-rank]))


def median_interval(samples: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return a confidence interval of the median whose ends are two of the independent samples.

    The ends are the k-th smallest and the k-th largest sample, with the largest k such that
    P(B < k) <= (1 - confidence) / 2 for B ~ Binomial(n, 1/2) (Hahn and Meeker 1991, section 5.2).
    The interval covers the median with at least the probability `confidence`. It is unknown if
    there are too few samples; 95 % needs 6.
    """
    values = np.sort(np.asarray(samples, np.float64), axis=None)
    return _ends(values, _median_rank(values.size, confidence))


@functools.lru_cache
def _median_rank(count: int, confidence: float) -> int:
    """Return k as in `median_interval`; 0 if there is no interval."""
    from scipy.stats import binom

    tail = (1 - confidence) / 2
    rank = int(binom.ppf(tail, count, 0.5)) if count else 0
    # If P(B <= rank) is exactly the tail's probability, k may be one larger.
    return rank + (count > 0 and binom.cdf(rank, count, 0.5) <= tail * (1 + 1e-9))


def mann_whitney(first: ArrayLike, second: ArrayLike) -> tuple[float, float]:
    """Test whether one of two groups of independent samples tends to be larger.

    Returns U of the second group, the number of pairs in which its sample is larger, and the
    two-sided p value (Mann and Whitney 1947). The p value is exact up to `EXACT_TEST` samples in
    total without ties; otherwise it is a normal approximation corrected for ties and continuity.
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
    """Return the least possible p value of `mann_whitney` for n and m samples without ties."""
    return min(1.0, 2 / math.comb(n + m, n))


def launches_p_value(launches: Sequence[NDArray[np.float64]]) -> float | None:
    """Return the p value of the null hypothesis that all launches have one distribution.

    The test is the rank test of Kruskal and Wallis (1952). Returns None if fewer than two launches
    have samples.
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
    of the shifts that the rank test would not reject. The interval assumes that the distributions
    differ only in location. It is unknown with too few samples; 95 % needs 4 in each group.
    """
    x, y = np.ravel(first), np.ravel(second)
    differences = np.sort(np.subtract.outer(y, x), axis=None)
    interval = _ends(differences, _shift_rank(x.size, y.size, confidence))
    return float(np.median(differences)), interval


@functools.lru_cache
def _shift_rank(n: int, m: int, confidence: float) -> int:
    """Return k such that the interval ends at the k-th smallest and k-th largest difference."""
    from scipy.stats import norm

    tail = (1 - confidence) / 2
    if n + m > EXACT_TEST:
        deviation = math.sqrt(n * m * (n + m + 1) / 12)
        return max(0, math.floor(n * m / 2 + 0.5 + norm.ppf(tail) * deviation))
    # ways[c, u] is the number of ways in which c chosen ranks give U = u. A chosen rank adds to U
    # the number of ranks below it that are not chosen.
    ways = np.zeros((m + 1, n * m + 1))
    ways[0, 0] = 1
    for rank in range(n + m):
        for chosen in range(min(m, rank + 1), max(0, rank - n), -1):
            above = rank - (chosen - 1)
            ways[chosen, above:] += ways[chosen - 1, : ways.shape[1] - above]
    below = np.cumsum(ways[m]) / math.comb(n + m, m)
    # The tolerance keeps rounding errors from widening the interval.
    return int((below <= tail * (1 + 1e-12)).sum())
