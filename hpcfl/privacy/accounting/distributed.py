"""Discrete Gaussian noise that many devices add to a sum of integers.

A sum of h independent discrete Gaussians of parameter sigma is not a discrete Gaussian of parameter
sqrt(h) sigma, but so close to one that for sigma above 2 no experiment could tell (Kairouz, Liu
and Steinke, 2021, "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation", Proposition 14).
"""

from __future__ import annotations

import math

from hpcfl.privacy.accounting.guarantee import check_count, check_positive


def divergence(summands: int, sigma: float) -> float:
    """Return tau, how far a sum of discrete Gaussians is from one, in max divergence.

    tau = 10 sum over k = 1 ... h - 1 of exp(-2 pi**2 sigma**2 k / (k + 1)), for sigma >= 1/2.

    Parameters
    ----------
    summands : int
        Number h of discrete Gaussians.
    sigma : float
        Parameter of each.

    Returns
    -------
    float
        Infinite where the bound does not hold.
    """
    check_count(summands=summands)
    check_positive(sigma=sigma)
    if summands == 1:
        return 0.0
    if sigma < 0.5:
        return math.inf
    # Terms decrease in k, towards exp(-2 pi**2 sigma**2): the first few, and a bound of the rest.
    rate = 2 * math.pi**2 * sigma**2
    head = min(summands - 1, 1000)
    total = math.fsum(math.exp(-rate * k / (k + 1)) for k in range(1, head + 1))
    total += (summands - 1 - head) * math.exp(-rate * (head + 1) / (head + 2))
    return 10 * total


def rho(summands: int, sigma: float, dim: int, l2: float) -> float:
    """Return the rho of a release of integers with the noise of h devices (Kairouz et al.).

    It is epsilon**2 / 2 for the smallest epsilon of
    sqrt(l2**2 / (h sigma**2) + 2 tau d),
    sqrt(l2**2 / (h sigma**2) + 2 l1 tau / (sqrt(h) sigma) + tau**2 d) and
    l2 / (sqrt(h) sigma) + tau sqrt(d), where l1 is at most sqrt(d) l2.

    Parameters
    ----------
    summands : int
        Number h of devices whose noise is in every coordinate.
    sigma : float
        Parameter of each device's noise, in integers.
    dim : int
        Number d of coordinates.
    l2 : float
        By how much one change of the data moves the sum, in integers.
    """
    check_count(dim=dim)
    check_positive(l2=l2)
    tau = divergence(summands, sigma)
    if math.isinf(tau):
        return math.inf
    ratio = l2 / (math.sqrt(summands) * sigma)
    l1 = math.sqrt(dim) * l2
    return 0.5 * min(
        ratio**2 + 2 * tau * dim,
        ratio**2 + 2 * l1 * tau / (math.sqrt(summands) * sigma) + tau**2 * dim,
        (ratio + tau * math.sqrt(dim)) ** 2,
    )


def rounded_norm(norm: float, dim: int) -> float:
    """Return the most that the l2 norm of a vector is when each coordinate is rounded to integers.

    Parameters
    ----------
    norm : float
        Of the vector before.
    dim : int
        Number of coordinates, each of which moves by less than one.
    """
    return norm + math.sqrt(dim)
