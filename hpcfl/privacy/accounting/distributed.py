"""Discrete Gaussian noise that many devices add to a sum of integers.

A sum of h independent discrete Gaussians of parameter sigma is not a discrete Gaussian of parameter
sqrt(h) sigma, but so close to one that for sigma above 2 no experiment could tell (Kairouz, Liu
and Steinke, 2021, "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation", Proposition 14). Nothing here is amplified by sampling.

The discrete Gaussian is all but a function of the continuous one. Rounding N(mu, s**2 - r**2) at
random, to the integer k with a chance in proportion to exp(-(k - y)**2 / (2 r**2)), gives the
discrete Gaussian about mu of parameter s, up to :func:`smoothing_divergence` (Peikert, 2010, "An
efficient and parallel Gaussian sampler for lattices", Theorem 3.1). So the integers are as private
as Gaussian noise of variance s**2 - r**2, of which epsilon is known exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from hpcfl.privacy.accounting import zcdp

# Width r of the rounding that makes Gaussian noise discrete, in integers: wide enough for nothing
# to be lost by it (1e-33 a coordinate), and narrow beside any noise that is of use.
_SMOOTHING = 2.0
# How likely it is, at most, that a vector's rounding has to be stopped from making it too long.
_TOO_LONG = 2.0**-40


# An account asks twice, and rounds have few numbers of devices.
@lru_cache(maxsize=4096)
def divergence(summands: int, sigma: float) -> float:
    """Return how far a sum of h discrete Gaussians is from one, in max divergence.

    tau = 10 sum over k = 1 ... h - 1 of exp(-2 pi**2 sigma**2 k / (k + 1)), for sigma >= 1/2.
    """
    if summands == 1:
        return 0.0
    if sigma < 0.5:
        return math.inf
    # Terms decrease in k, towards exp(-2 pi**2 sigma**2): the first few, and a bound of the rest.
    rate = 2 * math.pi**2 * sigma * sigma
    head = min(summands - 1, 1000)
    total = math.fsum(math.exp(-rate * (k / (k + 1))) for k in range(1, head + 1))
    total += (summands - 1 - head) * math.exp(-rate * ((head + 1) / (head + 2)))
    return 10 * total


def smoothing_divergence() -> float:
    """Return how far a rounded Gaussian is from a discrete one, in max divergence, per coordinate.

    By Poisson's summation formula a sum over the integers k of exp(-(k - y)**2 / (2 r**2)) is
    sqrt(2 pi) r times 1 up to 2 (sum over j >= 1 of exp(-2 pi**2 r**2 j**2)), whatever y. The ratio
    of the two probabilities of an integer is one such factor over another, of a larger r.
    """
    first = math.exp(-2 * (math.pi * _SMOOTHING) ** 2)
    return -2 * math.log1p(-2 * first / (1 - first))


def gaussian_variance(sigma: float, summands: int = 1) -> float:
    """Return the variance of the Gaussian noise that rounding makes a sum's; 0 if there is none."""
    return max(0.0, summands * sigma * sigma - _SMOOTHING**2)


def nearly_gaussian_epsilon(rho: float, apart: float, delta: float) -> float:
    """Return the epsilon of distributions that are within a max divergence of Gaussian ones.

    With P <= exp(t) P' and Q >= exp(-t) Q', P(S) - exp(epsilon) Q(S) is at most
    exp(t) (P'(S) - exp(epsilon - 2 t) Q'(S)). Here `rho` is that of all the Gaussians together, and
    `apart` the divergence t of all releases together.
    """
    if math.isinf(rho) or not apart < 1:
        return math.inf
    return zcdp.exact_epsilon(rho, delta * math.exp(-apart)) + 2 * apart


def epsilon(
    summands: Sequence[int], sigma: float, dim: int, l2: float, delta: float
) -> tuple[float, str]:
    """Return the epsilon of rounds and how it was found.

    `summands` is for every round the number h of devices whose noise, of parameter `sigma`, is in
    each of `dim` coordinates. One change of the data moves a sum by at most `l2`, in integers.
    """
    if min(summands, default=1) < 1:
        return math.inf, "a round has no noise that counts"
    rho = apart = 0.0
    for h, rounds in Counter(summands).items():
        variance = gaussian_variance(sigma, h)
        rho += rounds * l2 * l2 / (2 * variance) if variance > 0 else math.inf
        apart += rounds * dim * (divergence(h, sigma) + smoothing_divergence())
    found = nearly_gaussian_epsilon(rho, apart, delta)
    return found, f"exact Gaussian, rounded to integers, rho = {rho:.4g}"


def rounded_distance(norm: float, dim: int) -> float:
    """Return the most that two vectors differ by once rounded to integers, from that before."""
    return norm + math.sqrt(dim)


def rounded_norm(norm: float, dim: int) -> float:
    """Return the l2 norm that a vector of at most the norm D0 is held to, rounded to integers.

    Rounded at random, without bias, a coordinate x has a mean square of at most h(x**2), where h(s)
    is sqrt(s) up to s = 1/4 and s + 1/4 from there on. As h is concave, d coordinates whose squares
    add up to D0**2 have a mean square of at most d h(D0**2 / d) together.

    A coordinate's square is one of two that are 2 |x| + 1 apart at most. So by Hoeffding's
    inequality for the largest of all partial sums, the squares of the coordinates never exceed what
    they may by then, but with a probability of `_TOO_LONG`; there the rest has to be rounded
    towards zero (:meth:`~hpcfl.algorithms.quantisation.Quantiser.blocks`).
    """
    half = math.sqrt(dim) / 2
    mean = 2 * half * norm if norm < half else norm * norm + half * half
    spread = math.sqrt(-2 * math.log(_TOO_LONG)) * (norm + half)
    return min(math.sqrt(mean + spread), rounded_distance(norm, dim))
