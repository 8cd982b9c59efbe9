"""Paired differences with Student's interval and test, the exact sign test, and Holm's correction.

The test of differences is Student's t. With five seeds no exact test could tell anything apart: the
least two-sided p-value of sign or permutation tests is 2 / 2**5 = 0.06; with ten it is 0.002, which
Holm's correction takes above 0.05 from 26 comparisons on. The sign test stands in where t has no
scale: a value that is not finite, or differences that are all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, in their unit, its interval, and a two-sided p-value.

    Where a difference is not finite, the median stands in for the mean. The ends of the interval
    are NaN where the sign test was taken.
    """

    mean: float
    low: float
    high: float
    p_value: float

    def words(self, form: Callable[[float], str]) -> str:
        """Return the mean, and its interval if it is known, each as `form` writes it."""
        if math.isnan(self.low):
            return form(self.mean)
        return f"{form(self.mean)} ({form(self.low)} to {form(self.high)})"

    def __str__(self) -> str:
        return self.words("{:+.3g}".format)


def paired(first: Sequence[float | None], second: Sequence[float | None]) -> Difference:
    """Return what two samples of the same seeds differ by, the first less the second.

    Raises a ValueError if they have not as many values, two at the least.
    """
    a, b = (
        np.array([math.inf if x is None else x for x in some], float) for some in (first, second)
    )
    if a.shape != b.shape or a.size < 2:
        raise ValueError(f"{a.size} and {b.size} values cannot be compared seed by seed")
    # Infinite in both is a tie.
    differences = np.where(a == b, 0.0, a - np.where(a == b, 0.0, b))
    if not differences.any():
        return Difference(0.0, 0.0, 0.0, 1.0)
    finite = bool(np.isfinite(differences).all())
    mean = float(differences.mean() if finite else np.median(differences))
    # What rounding leaves of equal differences is no scale.
    if not finite or np.ptp(differences) <= 1e-9 * np.abs(differences).max():
        return Difference(mean, math.nan, math.nan, sign_test(differences.tolist()))
    error = float(differences.std(ddof=1)) / math.sqrt(differences.size)
    degrees = differences.size - 1
    reach = t_quantile(CONFIDENCE, degrees) * error
    return Difference(mean, mean - reach, mean + reach, 1 - t_within(abs(mean / error), degrees))


def sign_test(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the exact sign test; ties are left out."""
    positive, negative = sum(x > 0 for x in differences), sum(x < 0 for x in differences)
    count = positive + negative
    tail = sum(math.comb(count, k) for k in range(min(positive, negative) + 1))
    return min(1.0, 2 * tail / 2**count)


def t_within(value: float, degrees: int) -> float:
    """Return the probability that Student's t is at most so far from 0.

    The series of Abramowitz and Stegun, 26.7.3 and 26.7.4, which end for whole degrees of freedom.
    """
    angle = math.atan(value / math.sqrt(degrees))
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))


def half_width(values: Sequence[float]) -> float:
    """Return how far the ends of the mean's interval are from it, of two values or more."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return t_quantile(CONFIDENCE, len(values) - 1) * error


def t_quantile(probability: float, degrees: int) -> float:
    """Return how far from 0 Student's t is at most, with a probability."""
    low, high = 0.0, 1.0
    while t_within(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, degrees) < probability else (low, middle)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that allow for all the others, by Holm's method.

    Of all tests whose p-value is then at most x, none is a false alarm but with probability x.
    """
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted
