"""Sampled and composed mechanisms: their epsilon, and how it is found.

A noise multiplier is always the noise's standard deviation (or Laplace scale) over the true
sensitivity for the adjacency: to adding or removing one for Poisson samples, to replacing one for
samples of a fixed size, which is twice the clipping norm for a sum.

What is proven comes from privacy loss distributions (:mod:`~hpcfl.privacy.accounting.pld`), and is
compared with that of the same releases without sampling, which holds as well and is exact. What
papers claim for Poisson samples comes from Rényi divergences, by the package dp-accounting.
"""

from __future__ import annotations

import math
from functools import lru_cache

from hpcfl.errors import MissingPackageError
from hpcfl.privacy.accounting import pld, zcdp

# Dense where optimal orders of a moderate epsilon lie; the ends serve very large ones.
ORDERS: tuple[float, ...] = (
    *(1 + x / 100 for x in range(1, 10)),
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 65)),
    *(128.0, 256.0, 512.0, 1024.0),
)
# Noise beyond it gets no credit: losses would be within rounding errors of each other.
_LARGEST_MULTIPLIER = 1e9


# An account asks again and again, as for the noise of a target.
@lru_cache(maxsize=4096)
def poisson_gaussian(
    rate: float, multiplier: float, rounds: int, delta: float
) -> tuple[float, str]:
    """Return the epsilon of Gaussian releases of Poisson samples, each fresh and secret.

    Every member is in a sample with the probability `rate`, above 0 and at most 1.
    """
    plain = _unsampled(multiplier, rounds, delta)
    if rate == 1 or rounds == 0:
        return plain
    z = min(multiplier, _LARGEST_MULTIPLIER)
    removed = pld.epsilon(pld.removal(rate, z), rounds, delta)
    added = pld.epsilon(pld.addition(rate, z), rounds, delta, enough=removed)
    return min(plain, (max(removed, added), "PLD, Poisson sampling"))


@lru_cache(maxsize=4096)
def fixed_size_gaussian(
    rate: float, multiplier: float, rounds: int, delta: float
) -> tuple[float, str]:
    """Return the epsilon of Gaussian releases of samples that hold a part `rate` of the members.

    All sets of that size are equally likely; the number of members is public.
    """
    plain = _unsampled(multiplier, rounds, delta)
    if rate == 1 or rounds == 0:
        return plain
    pair = pld.replacement(rate, min(multiplier, _LARGEST_MULTIPLIER))
    return min(plain, (pld.epsilon(pair, rounds, delta), "PLD, sampling without replacement"))


def _unsampled(multiplier: float, rounds: int, delta: float) -> tuple[float, str]:
    epsilon = zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(multiplier), delta)
    return epsilon, "exact Gaussian, without amplification"


@lru_cache(maxsize=4096)
def laplace(multiplier: float, releases: int, delta: float) -> tuple[float, str]:
    """Return the epsilon of Laplace releases of the same data, whatever the adjacency.

    A delta of 0 stands for pure differential privacy: releases / multiplier.
    """
    pure = (releases / multiplier, "pure, by adding up")
    if delta == 0 or releases == 0:
        return pure
    # With the probability 2**-releases all losses are the largest: then epsilon is at most
    # -ln(1 - delta 2**releases) below the pure one.
    all_largest = delta * 2.0 ** min(releases, 1000)
    if all_largest < 1 and -math.log1p(-all_largest) < 1e-3 * pure[0]:
        return pure
    pair = pld.laplace(min(multiplier, _LARGEST_MULTIPLIER))
    return min(pure, (pld.epsilon(pair, releases, delta), "PLD, Laplace"))


@lru_cache(maxsize=4096)
def poisson_gaussian_rdp(rate: float, multiplier: float, rounds: int, delta: float) -> float:
    """Return the epsilon of Poisson samples by Rényi divergences, which is what papers claim."""
    if rounds == 0:
        return 0.0
    try:
        from absl import logging
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise MissingPackageError("accounting for sampling", "dp-accounting", "dp") from error

    # It warns of orders whose series do not converge: they are left out, which is safe.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        # An int would be taken for the multiplier of all releases together.
        event = PoissonSampledDpEvent(float(rate), GaussianDpEvent(float(multiplier)))
        return float(RdpAccountant(ORDERS).compose(event, int(rounds)).get_epsilon(delta))
    finally:
        logging.set_verbosity(verbosity)
