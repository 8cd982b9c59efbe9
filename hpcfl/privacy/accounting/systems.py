"""Accounts of all algorithms by name, and the noise that a target epsilon takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import cdp, dp_fedavg, fedsgd_dpc, locks, zcdp
from hpcfl.privacy.accounting.guarantee import Account, Guarantee, check_positive, words

# Noise beyond it is refused: no target that makes sense takes it, and squares must not overflow.
_LARGEST_SIGMA = 1e12


@dataclass(frozen=True)
class System:
    """An algorithm's settings and the functions that account for it.

    Attributes
    ----------
    settings : type
        A dataclass with at least a field `sigma`.
    paper : callable
        From settings to the paper's Guarantee.
    tight : callable or None
        To the paper's rho, converted exactly; None where the paper has no rho.
    bounds : callable
        To a tuple of everything that is proven.
    """

    settings: type
    paper: Callable[[Any], Guarantee]
    tight: Callable[[Any], Guarantee] | None
    bounds: Callable[[Any], tuple[Guarantee, ...]]

    def proven(self, settings: Any) -> Guarantee:
        """Return the smallest bound."""
        return min(self.bounds(settings), key=lambda bound: bound.epsilon)


SYSTEMS = {
    "cdp": System(cdp.Settings, cdp.cdp_paper, cdp.cdp_tight, cdp.bounds),
    "dp-dsgd": System(cdp.Settings, cdp.dp_dsgd_paper, cdp.dp_dsgd_tight, cdp.dp_dsgd_bounds),
    "dp-fedavg": System(dp_fedavg.Settings, dp_fedavg.paper, None, dp_fedavg.bounds),
    "locks": System(locks.Settings, locks.paper, locks.tight, locks.bounds),
    "fedsgd-dpc": System(fedsgd_dpc.Settings, fedsgd_dpc.paper, None, fedsgd_dpc.bounds),
}


@dataclass(frozen=True)
class TargetNoise:
    """Noise for a target epsilon, and what it buys.

    Attributes
    ----------
    by : str
        ``"paper"``, ``"same-rho tight"`` or ``"proven"``: the value that meets the target.
    sigma : float
        The least noise for it, to six digits.
    account : Account
        All values at this noise.
    """

    by: str
    sigma: float
    account: Account

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration for JSON."""
        return {"by": self.by, "sigma": self.sigma, "account": self.account.as_dict()}


def account(algorithm: str, **settings: Any) -> Account:
    """Return what an algorithm costs in privacy.

    Parameters
    ----------
    algorithm : str
        One of :data:`SYSTEMS`.
    **settings
        Fields of the algorithm's `Settings`.

    Raises
    ------
    UsageError
        If the algorithm is unknown, or a setting missing, unknown or out of range.
    HpcflError
        If the account needs a package that is not installed.
    """
    system = _system(algorithm)
    return _account(algorithm, system, _settings(algorithm, system, settings))


def noise(algorithm: str, epsilon: float, **settings: Any) -> tuple[TargetNoise, ...]:
    """Return the noise for which an algorithm has the epsilon, by each way to count it.

    Parameters
    ----------
    algorithm : str
        One of :data:`SYSTEMS`.
    epsilon : float
        The target, above 0.
    **settings
        Fields of the algorithm's `Settings`, without `sigma`.

    Returns
    -------
    tuple of TargetNoise
        By the paper's value, by the same rho converted exactly where there is one, and by the
        proven value.

    Raises
    ------
    UsageError
        As for :func:`account`, and if no noise reaches the target.
    HpcflError
        If the account needs a package that is not installed.
    """
    system = _system(algorithm)
    check_positive(epsilon=epsilon)
    if "sigma" in settings:
        raise UsageError("sigma is what is looked for: give epsilon alone")
    start = _settings(algorithm, system, {**settings, "sigma": settings.get("clip", 1.0)})
    ways = {"paper": system.paper, "same-rho tight": system.tight, "proven": system.proven}
    found = []
    for by, value in ways.items():
        if value is None:
            continue

        def spent(sigma: float, value: Callable[[Any], Guarantee] = value) -> float:
            return value(dataclasses.replace(start, sigma=sigma)).epsilon

        sigma = least_noise(spent, epsilon, start.sigma)
        at = dataclasses.replace(start, sigma=sigma)
        found.append(TargetNoise(by, sigma, _account(algorithm, system, at)))
    return tuple(found)


def least_noise(spent: Callable[[float], float], epsilon: float, start: float) -> float:
    """Return the least noise with at most the target epsilon, from above, to seven digits.

    Parameters
    ----------
    spent : callable
        Epsilon as a function of the noise, not increasing.
    epsilon : float
        The target, above 0.
    start : float
        Where to begin the search, above 0.

    Raises
    ------
    UsageError
        If no noise reaches the target, or any does.
    """
    optimize = zcdp.scipy("optimize")
    known: dict[float, float] = {}

    def excess(log_sigma: float) -> float:
        if log_sigma not in known:
            value = spent(math.exp(log_sigma))
            known[log_sigma] = math.log(min(max(value, 1e-300), 1e300)) - math.log(epsilon)
        return known[log_sigma]

    low = high = math.log(start)
    while excess(high) > 0:
        low, high = high, high + math.log(4)
        if math.exp(high) > start * _LARGEST_SIGMA:
            raise UsageError(
                f"no noise gives an epsilon of {epsilon:g} with these settings: what does not "
                "depend on sigma spends more than that"
            )
    while excess(low) <= 0:
        low, high = low - math.log(4), low
        if math.exp(low) < start / _LARGEST_SIGMA:
            raise UsageError(
                f"an epsilon of {epsilon:g} takes no noise with these settings: nothing is released"
            )
    optimize.brentq(excess, low, high, xtol=1e-8)
    enough = [u for u, value in known.items() if value <= 0]
    sigma = math.exp(min(enough))
    while spent(sigma) > epsilon:  # the last digit: exp of a logarithm
        sigma = math.nextafter(sigma, math.inf) * (1 + 1e-12)
    return sigma


def check_names(algorithm: str, given: Iterable[str], shown: Callable[[str], str] = words) -> None:
    """Refuse settings that an algorithm does not have, or that leave out one that it needs.

    Parameters
    ----------
    algorithm : str
        One of :data:`SYSTEMS`.
    given : iterable of str
        Names of the settings.
    shown : callable
        From a setting's name to how the error calls it.

    Raises
    ------
    UsageError
    """
    fields = dataclasses.fields(_system(algorithm).settings)
    names = set(given)
    strange = sorted(names - {field.name for field in fields})
    if strange:
        raise UsageError(f"{algorithm} has no setting {shown(strange[0])}: leave it out")
    missing = [
        shown(field.name)
        for field in fields
        if field.default is MISSING and field.name not in names
    ]
    if missing:
        raise UsageError(f"{algorithm} also needs {', '.join(missing)}")


def _account(algorithm: str, system: System, settings: Any) -> Account:
    return Account(
        algorithm,
        dataclasses.asdict(settings),
        system.paper(settings),
        None if system.tight is None else system.tight(settings),
        system.bounds(settings),
    )


def _system(algorithm: str) -> System:
    if algorithm not in SYSTEMS:
        raise UsageError(
            f"there is no account for {algorithm!r}; choose one of {', '.join(SYSTEMS)}"
        )
    return SYSTEMS[algorithm]


def _settings(algorithm: str, system: System, given: dict[str, Any]) -> Any:
    check_names(algorithm, given)
    return system.settings(**given)
