"""Binomial and hypergeometric probabilities, computed with logarithms to avoid overflow.

SciPy has them too, but importing it takes longer than the rounds of a small benchmark.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
IntLike = int | Counts


def log_binomial(n: IntLike, k: IntLike) -> Floats:
    """Return log C(n, k), elementwise; minus infinity where k < 0 or k > n.

    The absolute error is about 1e-15 log n!, i.e. 1e-10 at n = 10,000.
    """
    n, k = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(k, np.int64))
    table = _log_factorials(int(n.max(initial=1)).bit_length())
    possible = (k >= 0) & (k <= n)
    n, k = np.where(possible, n, 0), np.where(possible, k, 0)
    return np.where(possible, table[n] - table[k] - table[n - k], -np.inf)


def binomial(trials: int, probability: float, hits: IntLike) -> Floats:
    """Return the probability of `hits` successes in `trials` independent trials."""
    hits = np.asarray(hits, np.int64)
    return np.exp(
        log_binomial(trials, hits)
        + _log_power(probability, hits)
        + _log_power(1 - probability, trials - hits)
    )


def hypergeometric(total: IntLike, marked: IntLike, drawn: IntLike, hits: IntLike) -> Floats:
    """Return the probability that `hits` of `drawn` items are among the `marked` of `total` items.

    Items are drawn without replacement. All four arguments are broadcast against each other.
    """
    rest = np.subtract(total, marked)
    return np.exp(
        log_binomial(marked, hits)
        + log_binomial(rest, np.subtract(drawn, hits))
        - log_binomial(total, drawn)
    )


def _log_power(base: float, exponent: Any) -> Floats:
    """Return log(base**exponent) with 0**0 = 1."""
    if base > 0:
        return np.asarray(exponent * math.log(base))
    return np.where(exponent == 0, 0.0, -np.inf)


# Caches every table size, because a bound uses several of them repeatedly.
@cache
def _log_factorials(bits: int) -> Floats:
    """Return log n! for all n of at most `bits` bits."""
    return np.array([math.lgamma(n + 1) for n in range(1 << bits)])
