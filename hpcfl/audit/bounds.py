"""Lower bounds on epsilon from how well runs on two neighbouring datasets are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.privacy.accounting.zcdp import exact_epsilon

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EpsilonBound:
    """A lower bound on epsilon, and the test that gives it."""

    epsilon: float
    true_positives: int  # of `runs` runs on each dataset, those beyond the threshold
    false_positives: int
    runs: int
    threshold: float  # of the statistic, in natural logarithms
    mu: float | None = None  # lower bound on mu, where epsilon comes of it


def lower_bound(without: Floats, with_: Floats, delta: float, confidence: float) -> EpsilonBound:
    """Return a lower bound on epsilon from a statistic's values on two neighbouring datasets.

    Large values speak for the second dataset. The first half of each chooses the threshold.
    """

    def epsilon(true: Any, false: Any, runs: int) -> Floats:
        least, most = _rates(true, false, runs, confidence)
        with np.errstate(divide="ignore"):
            return np.maximum(0.0, np.log(np.maximum(0.0, least - delta)) - np.log(most))

    threshold, true, false, runs = _test(without, with_, epsilon)
    return EpsilonBound(float(epsilon(true, false, runs)), int(true), int(false), runs, threshold)


def gaussian_bound(without: Floats, with_: Floats, delta: float, confidence: float) -> EpsilonBound:
    """Return a lower bound on epsilon by way of mu, as of `lower_bound`; for Gaussian noise only.

    Nasr et al. (2023), Section 4.
    """
    from scipy.special import ndtri

    def mu(true: Any, false: Any, runs: int) -> Floats:
        least, most = _rates(true, false, runs, confidence)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.maximum(0.0, ndtri(least) - ndtri(most)), nan=0.0)

    threshold, true, false, runs = _test(without, with_, mu)
    least = float(mu(true, false, runs))
    epsilon = exact_epsilon(least**2 / 2, delta)
    return EpsilonBound(epsilon, int(true), int(false), runs, threshold, least)


def _rates(true: Any, false: Any, runs: int, confidence: float) -> tuple[Floats, Floats]:
    """Return the least true and the largest false positive rate, jointly with the confidence."""
    each = (1 - confidence) / 2
    return clopper_pearson(true, runs, each)[0], clopper_pearson(false, runs, each)[1]


def _test(
    without: Floats, with_: Floats, value: Callable[[Any, Any, int], Floats]
) -> tuple[float, int, int, int]:
    """Choose the threshold of the largest value on the first half, and count on the second.

    Return it, the true positives, the false positives, and the runs on each dataset.
    """
    half = without.size // 2
    negatives, positives = np.sort(without[:half]), np.sort(with_[:half])
    candidates = np.unique(np.concatenate([negatives, positives]))
    true = half - np.searchsorted(positives, candidates)
    false = half - np.searchsorted(negatives, candidates)
    threshold = float(candidates[int(np.argmax(value(true, false, half)))])
    hits, alarms = (int(np.sum(one[half:] >= threshold)) for one in (with_, without))
    return threshold, hits, alarms, without.size - half


def clopper_pearson(count: Any, runs: int, error: float) -> tuple[Floats, Floats]:
    """Return lower and upper bounds of a probability, each wrong with at most `error`.

    Clopper and Pearson (1934): with the lower, at least `count` successes in `runs` independent
    trials have the probability `error`; with the upper, at most `count`.
    """
    from scipy.stats import beta

    count = np.asarray(count, np.float64)
    lower = beta.ppf(error, count, runs - count + 1)
    upper = beta.ppf(1 - error, count + 1, runs - count)
    return np.nan_to_num(lower, nan=0.0), np.nan_to_num(upper, nan=1.0)
