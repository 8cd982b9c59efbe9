"""Sampled and composed mechanisms.

- A noise multiplier is always the noise's standard deviation (or Laplace scale) over the true
  sensitivity for the caller's adjacency.
- Poisson sampling is accounted for adding or removing one, sampling without replacement for
  replacing one.
- What is proven comes from privacy loss distributions (:mod:`~hpcfl.privacy.accounting.pld`), and
  is compared with that of the same releases without sampling, which holds as well and is exact.
- What papers claim for Poisson samples comes from Renyi divergences, of the package dp-accounting:
  multipliers are floats there, as of a sampled composition it would take an ``int`` multiplier as
  that of the whole.

All of it refuses values out of range (UsageError), and names a missing package (HpcflError).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType

import numpy as np

from hpcfl.errors import MissingPackageError, UsageError
from hpcfl.privacy.accounting import pld, zcdp
from hpcfl.privacy.accounting.guarantee import check_count, check_delta, check_positive
from hpcfl.privacy.distributions import Floats

# Dense where optimal orders of a moderate epsilon lie; the ends serve very large ones.
ORDERS: tuple[float, ...] = (
    *(1 + x / 100 for x in range(1, 10)),
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 65)),
    *(128.0, 256.0, 512.0, 1024.0),
)

# For small epsilons, where the best order is about 2 ln(1/delta) / epsilon: by factors of sqrt(2).
LARGE_ORDERS: tuple[float, ...] = tuple(float(round(2 ** (x / 2))) for x in range(14, 35))

# Noise beyond it gets no credit: losses would be within rounding errors of each other.
_LARGEST_MULTIPLIER = 1e9

_POISSON, _FIXED = "PLD, Poisson sampling", "PLD, sampling without replacement"


def poisson_gaussian(
    rate: float, multiplier: float, rounds: int, delta: float
) -> tuple[float, str]:
    """Return the epsilon of Gaussian releases of Poisson samples; adjacency: add or remove one.

    Parameters
    ----------
    rate : float
        Probability of each member to be in a round's sample, above 0 and at most 1.
    multiplier : float
        Standard deviation of the noise over the l2-sensitivity to adding or removing one member.
    rounds : int
        Number of releases, each of a fresh and secret sample.
    delta : float

    Returns
    -------
    epsilon : float
        The lesser of the bounds by PLD and without amplification.
    method : str
        Which one it is.
    """
    plain = _unsampled(multiplier, rounds, delta)
    if rate == 1:
        return plain
    return min(plain, (poisson_gaussian_pld(rate, multiplier, rounds, delta), _POISSON))


@lru_cache(maxsize=4096)
def poisson_gaussian_pld(rate: float, multiplier: float, rounds: int, delta: float) -> float:
    """Return the epsilon by PLD: the larger of a removal's and an addition's."""
    _check(multiplier, rounds, delta)
    _check_rate(rate)
    if rounds == 0:
        return 0.0
    given = float(rate), min(float(multiplier), _LARGEST_MULTIPLIER)
    removed = pld.epsilon(pld.removal(*given), rounds, delta)
    return max(removed, pld.epsilon(pld.addition(*given), rounds, delta, enough=removed))


@lru_cache(maxsize=4096)
def poisson_gaussian_rdp(rate: float, multiplier: float, rounds: int, delta: float) -> float:
    """Return the epsilon that RDP alone gives (Mironov, Talwar and Zhang, 2019).

    Parameters and adjacency as for :func:`poisson_gaussian`; it needs dp-accounting.
    """
    _check(multiplier, rounds, delta)
    _check_rate(rate)
    if rounds == 0:
        return 0.0
    dp = dp_accounting()
    from dp_accounting.rdp import RdpAccountant

    event = dp.PoissonSampledDpEvent(float(rate), dp.GaussianDpEvent(float(multiplier)))
    with quiet():
        accountant = RdpAccountant(ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
        small = float(accountant.compose(event, int(rounds)).get_epsilon(delta))
    large = rounds * poisson_gaussian_curve(rate, multiplier)
    return min(small, curve_epsilon(large, delta))


def poisson_gaussian_curve(
    rate: float, multiplier: float, orders: tuple[float, ...] = LARGE_ORDERS
) -> Floats:
    """Return the curve of the Gaussian mechanism on a Poisson sample, at whole orders.

    Of the order alpha it is ln A / (alpha - 1), A = sum over k of
    binom(alpha, k) (1 - q)**(alpha - k) q**k exp((k**2 - k) / (2 z**2))
    (Mironov, Talwar and Zhang, 2019, Section 3.3), and alpha / (2 z**2) of all members, q = 1
    (Mironov, 2017, Cor. 3); adjacency: add or remove one. Curves of mechanisms run on the same data
    add up (Mironov, 2017, Prop. 1).
    """
    if rate == 1:
        return np.array(orders) / (2 * float(multiplier) ** 2)
    gammaln, curve = zcdp.scipy("special").gammaln, []
    for alpha in orders:
        # The terms add up to 1 without the exponentials: what these add keeps its digits.
        k = np.arange(2, int(alpha) + 1, dtype=np.float64)
        chances = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
        chances += (alpha - k) * math.log1p(-rate) + k * math.log(rate)
        exponents = (k * k - k) / (2 * float(multiplier) ** 2)
        growth = exponents + np.log(-np.expm1(-exponents))
        curve.append(np.logaddexp(0.0, np.logaddexp.reduce(chances + growth)) / (alpha - 1))
    return np.array(curve)


def curve_epsilon(curve: Floats, delta: float, orders: tuple[float, ...] = LARGE_ORDERS) -> float:
    """Return the least epsilon that a curve proves, and 0 at the least.

    The minimum over the orders of curve + ln(1 - 1/alpha) - (ln delta + ln alpha) / (alpha - 1)
    (Canonne, Kamath and Steinke, 2020, Prop. 12). The curve may be infinite at some orders.
    """
    alpha = np.array(orders)
    epsilon = curve + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    return max(0.0, float(epsilon.min()))


def fixed_size_gaussian(
    population: int, sample: int, multiplier: float, rounds: int, delta: float
) -> tuple[float, str]:
    """Return the epsilon of releases of samples without replacement; adjacency: replace one.

    Parameters
    ----------
    population : int
        Number of members; public.
    sample : int
        Number of them in each round's sample, all sets of that size equally likely.
    multiplier : float
        Standard deviation of the noise over the l2-sensitivity to replacing one member, which is
        twice the clipping norm for a sum.
    rounds : int
        Number of releases, each of a fresh and secret sample.
    delta : float

    Returns
    -------
    epsilon : float
        The lesser of the bounds by PLD and without amplification.
    method : str
        Which one it is.
    """
    check_count(population=population, sample=sample)
    if sample > population:
        raise UsageError(
            f"the sample has {sample} members of {population}; it can have at most all of them"
        )
    plain = _unsampled(multiplier, rounds, delta)
    if sample == population or rounds == 0:
        return plain
    return min(plain, (_fixed_size_pld(sample / population, multiplier, rounds, delta), _FIXED))


@lru_cache(maxsize=4096)
def _fixed_size_pld(rate: float, multiplier: float, rounds: int, delta: float) -> float:
    pair = pld.replacement(rate, min(float(multiplier), _LARGEST_MULTIPLIER))
    return pld.epsilon(pair, int(rounds), delta)


def laplace(multiplier: float, releases: int, delta: float) -> tuple[float, str]:
    """Return the epsilon of Laplace releases of the same data.

    Parameters
    ----------
    multiplier : float
        Scale of the noise over the l1-sensitivity, whatever the adjacency.
    releases : int
    delta : float
        0 for pure differential privacy: releases / multiplier.

    Returns
    -------
    epsilon : float
        For delta above 0, the lesser of the PLD's and the pure one.
    method : str
        Which one it is.
    """
    check_positive(multiplier=multiplier)
    check_count(releases=releases, least=0)
    pure = (releases / float(multiplier), "pure, by adding up")
    if delta == 0 or releases == 0:
        return pure
    check_delta(delta)
    # With the probability 2**-releases all losses are the largest: then epsilon is at most
    # -ln(1 - delta 2**releases) below the pure one.
    all_largest = delta * 2.0 ** min(releases, 1000)
    near = all_largest < 1 and -math.log1p(-all_largest) < 1e-3 * pure[0]
    if near:
        return pure
    return min(pure, (_laplace_pld(float(multiplier), int(releases), delta), "PLD, Laplace"))


@lru_cache(maxsize=4096)
def _laplace_pld(multiplier: float, releases: int, delta: float) -> float:
    return pld.epsilon(pld.laplace(min(multiplier, _LARGEST_MULTIPLIER)), releases, delta)


def _unsampled(multiplier: float, rounds: int, delta: float) -> tuple[float, str]:
    _check(multiplier, rounds, delta)
    epsilon = zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(multiplier), delta)
    return epsilon, "exact Gaussian, without amplification"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of orders that did not converge: they are left out, which is safe."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def dp_accounting() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise MissingPackageError("accounting for sampling", "dp-accounting", "dp") from error
    module: ModuleType = dp_accounting
    return module


def _check(multiplier: float, rounds: int, delta: float) -> None:
    check_positive(multiplier=multiplier)
    zcdp.gaussian_rho(multiplier)  # refuses what it cannot square
    check_count(rounds=rounds, least=0)
    check_delta(delta)


def _check_rate(rate: float) -> None:
    if not (0 < rate <= 1 and math.isfinite(rate)):
        raise UsageError(f"the sampling rate is {rate}; it must be above 0, at most 1")
