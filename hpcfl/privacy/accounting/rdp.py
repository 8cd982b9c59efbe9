"""Rényi differential privacy (RDP): a divergence for each of many orders, added up.

An RDP curve is an array of divergences, one for each of :data:`ORDERS`; curves of mechanisms run on
the same data add up (Mironov, 2017, Prop. 1).
"""

from __future__ import annotations

import math

import numpy as np

from hpcfl.privacy.accounting import zcdp
from hpcfl.privacy.accounting.guarantee import check_delta
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


def gaussian_curve(multiplier: float, orders: tuple[float, ...] = ORDERS) -> Floats:
    """Return alpha / (2 z**2), the curve of the Gaussian mechanism (Mironov, 2017, Cor. 3)."""
    return np.array(orders) / (2 * float(multiplier) ** 2)


def poisson_gaussian_curve(
    rate: float, multiplier: float, orders: tuple[float, ...] = LARGE_ORDERS
) -> Floats:
    """Return the curve of the Gaussian mechanism on a Poisson sample, at whole orders.

    Of the order alpha it is ln A / (alpha - 1), A = sum over k of
    binom(alpha, k) (1 - q)**(alpha - k) q**k exp((k**2 - k) / (2 z**2))
    (Mironov, Talwar and Zhang, 2019, Section 3.3); adjacency: add or remove one.

    Parameters
    ----------
    rate : float
        Probability q of each member to be in the sample, above 0 and at most 1.
    multiplier : float
        Noise multiplier z, above 0.
    orders : tuple of float
        Whole numbers, at least 2.

    Returns
    -------
    ndarray of float64, shape (orders,)
    """
    if rate == 1:
        return gaussian_curve(multiplier, orders)
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


def curve_epsilon(curve: Floats, delta: float, orders: tuple[float, ...] = ORDERS) -> float:
    """Return the least epsilon that a curve proves, and 0 at the least.

    The minimum over the orders of curve + ln(1 - 1/alpha) - (ln delta + ln alpha) / (alpha - 1)
    (Canonne, Kamath and Steinke, 2020, Prop. 12). The curve may be infinite at some orders.
    """
    check_delta(delta)
    alpha = np.array(orders)
    epsilon = curve + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    return max(0.0, float(epsilon.min()))
