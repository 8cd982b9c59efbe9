"""Zero-concentrated differential privacy (zCDP) of Gaussian noise, and (epsilon, delta).

A mechanism is rho-zCDP if its Rényi divergence of every order alpha > 1 is at most rho alpha. The
Gaussian mechanism with noise multiplier z (standard deviation over l2-sensitivity) has
rho = 1 / (2 z**2), and rho adds up under adaptive composition (Bun and Steinke, 2016).

Three conversions to epsilon, from loose to exact: :func:`bun_steinke_epsilon` and
:func:`rdp_epsilon` hold for any rho-zCDP mechanism, :func:`exact_epsilon` for compositions of
Gaussian mechanisms, and for whatever their hockey-stick divergences dominate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def gaussian_rho(multiplier: float) -> float:
    """Return rho = 1 / (2 z**2) of the Gaussian mechanism (Bun and Steinke, 2016, Prop. 1.6)."""
    return 0.5 / float(multiplier) ** 2


def combined_multiplier(*multipliers: float) -> float:
    """Return (sum of z**-2)**(-1/2): one Gaussian release with it costs as much as all of these."""
    return 1 / math.sqrt(2 * math.fsum(gaussian_rho(z) for z in multipliers))


def bun_steinke_epsilon(rho: float, delta: float) -> float:
    """Return rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke, 2016, Prop. 1.3)."""
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def rdp_epsilon(rho: float, delta: float) -> float:
    """Return the least epsilon that Rényi divergences of at most rho alpha prove.

    The minimum over alpha > 1 of
    rho alpha + ln(1 - 1/alpha) - (ln delta + ln alpha) / (alpha - 1)
    (Canonne, Kamath and Steinke, 2020, Prop. 12).
    """
    if rho == 0:
        return 0.0
    from scipy.optimize import minimize_scalar

    log_delta = math.log(delta)

    def epsilon(u: Any) -> Any:  # at alpha = 1 + exp(u)
        excess = np.exp(u)
        log_alpha = np.log1p(excess)
        return rho * (1 + excess) + u - log_alpha - (log_delta + log_alpha) / excess

    # A coarse grid finds the valley; any alpha gives a valid bound.
    grid = np.linspace(-20, 20, 201) + math.log(math.sqrt(-log_delta / rho))
    best = grid[int(np.argmin(epsilon(np.clip(grid, -300, 300))))]
    ends = best - 0.2, best + 0.2
    found = minimize_scalar(epsilon, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def log_hockey_stick(epsilon: float, rho: float) -> float:
    """Return ln delta(epsilon) of Gaussian mechanisms of total rho, exactly.

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), mu = sqrt(2 rho)
    (Balle and Wang, 2018, Theorem 8): the hockey-stick divergence of N(mu, 1) and N(0, 1). It is
    minus infinity for rho = 0.
    """
    if rho == 0:
        return -math.inf
    from scipy.special import erfcx, log_ndtr

    mu = math.sqrt(2 * rho)
    upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    if upper > 10:  # delta is all but 1, and erfcx may overflow
        second = epsilon + float(log_ndtr(lower))
        return float(log_ndtr(upper)) + math.log1p(-math.exp(second - float(log_ndtr(upper))))
    # Both terms are a density times a Mills ratio, and exp(epsilon) phi(lower) = phi(upper): so
    # neither a large epsilon nor a small delta costs digits.
    ratios = float(erfcx(-upper / math.sqrt(2)) - erfcx(-lower / math.sqrt(2)))
    return -(upper**2) / 2 + math.log(ratios / 2) if ratios > 0 else -math.inf


# Beyond it, floating point cannot tell the exact epsilon from the bound of Bun and Steinke.
_LARGEST_RHO = 1e8


def exact_epsilon(rho: float, delta: float) -> float:
    """Return the least epsilon of Gaussian mechanisms of total rho, by bisection, rounded up."""
    if rho == 0 or log_hockey_stick(0, rho) <= math.log(delta):
        return 0.0
    low, high = 0.0, bun_steinke_epsilon(rho, delta)
    if rho > _LARGEST_RHO:
        return high
    while low < (middle := (low + high) / 2) < high:
        if log_hockey_stick(middle, rho) > math.log(delta):
            low = middle
        else:
            high = middle
    return high
