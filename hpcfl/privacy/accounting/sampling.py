"""Sampled and composed mechanisms, through the package dp-accounting.

That package's events are easy to hold wrongly; what the functions here keep to:

- A noise multiplier is always the noise's standard deviation (or Laplace scale) over the true
  sensitivity for the caller's adjacency. dp-accounting's PLD accountant doubles the sensitivity of
  a Gaussian event if asked for "replace one", its RDP accountant does not; so a PLD is only ever
  asked for "add or remove one".
- Several Gaussian releases of one sample are combined here, and multipliers are floats: of a
  sampled composition, dp-accounting would take an ``int`` multiplier as that of the whole.
- Poisson sampling is accounted for adding or removing one, sampling without replacement (by RDP
  only) for replacing one; no other pair has an accountant.
- Every bound is compared with that of the same releases without sampling, which holds as well and
  is the lower one at small multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import zcdp
from hpcfl.privacy.accounting.guarantee import check_count, check_delta, check_positive
from hpcfl.privacy.accounting.rdp import ORDERS

# Beyond it, a discretised loss distribution takes much memory for a figure nobody can use.
_LARGEST_PLD = 1000.0

# Noise beyond it gets no credit.
_LARGEST_MULTIPLIER = 1e7


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
        The least of the bounds by RDP, by PLD and without amplification.
    method : str
        Which one it is.

    Raises
    ------
    UsageError
        If a value is out of range.
    HpcflError
        If dp-accounting is not installed.
    """
    rdp = poisson_gaussian_rdp(rate, multiplier, rounds, delta)
    bounds = [
        (_unsampled(multiplier, rounds, delta), "exact Gaussian, without amplification"),
        (rdp, "RDP, Poisson sampling"),
    ]
    if rdp <= _LARGEST_PLD:
        found = poisson_gaussian_pld(rate, multiplier, rounds, delta)
        bounds.append((found, "PLD, Poisson sampling"))
    return min(bounds)


@lru_cache(maxsize=4096)
def poisson_gaussian_rdp(rate: float, multiplier: float, rounds: int, delta: float) -> float:
    """Return the epsilon that RDP alone gives (Mironov, Talwar and Zhang, 2019).

    Parameters, adjacency and errors as for :func:`poisson_gaussian`.
    """
    _check(multiplier, rounds, delta)
    _check_rate(rate)
    dp = _dp_accounting()
    event = dp.PoissonSampledDpEvent(float(rate), dp.GaussianDpEvent(float(multiplier)))
    return _rdp(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, event, rounds, delta)


@lru_cache(maxsize=4096)
def poisson_gaussian_pld(
    rate: float, multiplier: float, rounds: int, delta: float, interval: float | None = None
) -> float:
    """Return the epsilon by the privacy loss distribution (PLD), rounded up.

    Parameters, adjacency and errors as for :func:`poisson_gaussian`.

    Parameters
    ----------
    rate, multiplier, rounds, delta
        As there.
    interval : float, optional
        Width of the steps of the distribution. By default fine enough for four digits.
    """
    _check(multiplier, rounds, delta)
    _check_rate(rate)
    dp = _dp_accounting()
    if interval is None:
        scale = poisson_gaussian_rdp(rate, multiplier, rounds, delta)
        interval = max(1e-4, 2e-5 * min(scale, _LARGEST_PLD))
    event = dp.PoissonSampledDpEvent(float(rate), dp.GaussianDpEvent(float(multiplier)))
    return _pld(event, rounds, delta, interval)


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
        The lesser of the bounds by RDP and without amplification.
    method : str
        Which one it is.

    Raises
    ------
    UsageError
        If a value is out of range.
    HpcflError
        If dp-accounting is not installed.
    """
    return min(
        (_unsampled(multiplier, rounds, delta), "exact Gaussian, without amplification"),
        (
            fixed_size_gaussian_rdp(population, sample, multiplier, rounds, delta),
            "RDP, sampling without replacement",
        ),
    )


@lru_cache(maxsize=4096)
def fixed_size_gaussian_rdp(
    population: int, sample: int, multiplier: float, rounds: int, delta: float
) -> float:
    """Return the epsilon that RDP alone gives (Wang, Balle and Kasiviswanathan, 2019, Thm. 27).

    It can exceed the one without sampling. Parameters, adjacency and errors as for
    :func:`fixed_size_gaussian`.
    """
    _check(multiplier, rounds, delta)
    check_count(population=population, sample=sample)
    if sample > population:
        raise UsageError(
            f"the sample has {sample} members of {population}; it can have at most all of them"
        )
    dp = _dp_accounting()
    # So much noise that less would do: of much more, dp-accounting takes the logarithm of 0.
    enough = min(float(multiplier), _LARGEST_MULTIPLIER)
    event = dp.SampledWithoutReplacementDpEvent(
        int(population), int(sample), dp.GaussianDpEvent(enough)
    )
    return _rdp(dp.NeighboringRelation.REPLACE_ONE, event, rounds, delta)


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

    Raises
    ------
    UsageError
        If a value is out of range.
    HpcflError
        If dp-accounting is not installed, and delta is above 0.
    """
    check_positive(multiplier=multiplier)
    check_count(releases=releases, least=0)
    pure = (releases / float(multiplier), "pure, by adding up")
    if delta == 0 or releases == 0:
        return pure
    check_delta(delta)
    if pure[0] > _LARGEST_PLD:
        return pure
    dp = _dp_accounting()
    # A pure epsilon is at most the sum, which sets the scale of the steps.
    interval = max(1e-4, 2e-5 * pure[0])
    event = dp.LaplaceDpEvent(float(multiplier))
    return min(pure, (_pld(event, releases, delta, interval), "PLD, Laplace"))


def _unsampled(multiplier: float, rounds: int, delta: float) -> float:
    return zcdp.exact_epsilon(rounds * zcdp.gaussian_rho(multiplier), delta)


def _rdp(relation: object, event: object, rounds: int, delta: float) -> float:
    from dp_accounting.rdp import RdpAccountant

    if rounds == 0:
        return 0.0
    with _quiet():
        accountant = RdpAccountant(ORDERS, relation)
        return float(accountant.compose(event, int(rounds)).get_epsilon(delta))


def _pld(event: object, rounds: int, delta: float, interval: float) -> float:
    from dp_accounting.pld import PLDAccountant

    if rounds == 0:
        return 0.0
    dp = _dp_accounting()
    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    return max(0.0, float(accountant.compose(event, int(rounds)).get_epsilon(delta)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of orders that did not converge: they are left out, which is safe."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _dp_accounting() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        from hpcfl.errors import HpcflError

        raise HpcflError(
            "accounting for sampling needs dp-accounting: pip install 'hpcfl[dp]'"
        ) from error
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
