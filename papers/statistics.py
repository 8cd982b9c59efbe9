"""Paired differences with Student's interval and test, the exact sign test, and Holm's correction.

Differences are tested with Student's t. An exact test cannot be significant with five seeds: the
smallest two-sided p-value of sign or permutation tests is 2 / 2**5 = 0.06. With ten seeds it is
0.002, which Holm's correction raises above 0.05 for 26 or more comparisons. The sign test is used
if t has no scale, because a value is not finite or all differences are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, in their unit, its 95 % interval, and a two-sided p-value.

    If a difference is not finite, `mean` is the median instead. The ends of the interval are NaN if
    the sign test was used.
    """

    mean: float
    low: float
    high: float
    p_value: float

    def words(self, form: Callable[[float], str]) -> str:
        """Return the mean, and its interval if it is known, formatted by `form`."""
        if math.isnan(self.low):
            return form(self.mean)
        return f"{form(self.mean)} ({form(self.low)} to {form(self.high)})"


def paired(first: Sequence[float | None], second: Sequence[float | None]) -> Difference:
    """Return the difference of two samples with the same seeds, the first minus the second.

    None stands for infinity. Two infinite values are equal.
    """
    a, b = (
        np.array([math.inf if x is None else x for x in some], float) for some in (first, second)
    )
    differences = np.where(a == b, 0.0, a - np.where(a == b, 0.0, b))
    if not differences.any():
        return Difference(0.0, 0.0, 0.0, 1.0)
    finite = bool(np.isfinite(differences).all())
    mean = float(differences.mean() if finite else np.median(differences))
    # If differences are equal up to rounding errors, t has no scale.
    if not finite or np.ptp(differences) <= 1e-9 * np.abs(differences).max():
        positive, negative = int((differences > 0).sum()), int((differences < 0).sum())
        sign = stats.binomtest(positive, positive + negative)
        return Difference(mean, math.nan, math.nan, float(sign.pvalue))
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval()
    return Difference(mean, float(low), float(high), float(test.pvalue))


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval, for at least two values."""
    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, corrected for multiple comparisons by Holm's method."""
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted
