"""What an algorithm declares of its privacy, and what is found from it: accounts, and noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.privacy.accounting import zcdp
from hpcfl.privacy.accounting.guarantee import Account, Guarantee, check_positive, spaced
from hpcfl.report.formats import rounded_up

# Noise beyond it is refused: no target that makes sense takes it, and squares must not overflow.
_LARGEST_SIGMA = 1e12


@dataclass(frozen=True)
class Accountant:
    """An algorithm's settings, and the functions that account for it.

    Attributes
    ----------
    name : str
        The algorithm's.
    settings : type
        A dataclass with at least a field `sigma`, which refuses what is out of range.
    paper : callable
        From settings to what the algorithm's paper claims, a Guarantee.
    bounds : callable
        From settings to a tuple of everything that is proven.
    tight : callable, optional
        From settings to the paper's rho, converted exactly, where the paper has a rho.
    """

    name: str
    settings: type
    paper: Callable[[Any], Guarantee]
    bounds: Callable[[Any], tuple[Guarantee, ...]]
    tight: Callable[[Any], Guarantee] | None = None

    def proven(self, settings: Any) -> Guarantee:
        """Return the smallest bound."""
        return min(self.bounds(settings), key=lambda bound: bound.epsilon)

    def account(self, **settings: Any) -> Account:
        """Return what the algorithm costs in privacy.

        Parameters
        ----------
        **settings
            Fields of the algorithm's `Settings`.

        Raises
        ------
        UsageError
            If a setting is missing, unknown or out of range.
        """
        self.check_names(settings)
        return self._account(self.settings(**settings))

    def noise(self, epsilon: float, **settings: Any) -> tuple[TargetNoise, ...]:
        """Return the noise for which the algorithm has the epsilon, by each way to count it.

        Parameters
        ----------
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
            As for :meth:`account`, and if no noise reaches the target.
        """
        check_positive(epsilon=epsilon)
        if "sigma" in settings:
            raise UsageError("sigma is what is looked for: give epsilon alone")
        self.check_names([*settings, "sigma"])
        start = self.settings(**settings, sigma=settings.get("clip_norm", 1.0))
        ways = {"paper": self.paper, "same-rho tight": self.tight, "proven": self.proven}
        found = []
        for by, value in ways.items():
            if value is None:
                continue

            def spent(sigma: float, value: Callable[[Any], Guarantee] = value) -> float:
                return value(dataclasses.replace(start, sigma=sigma)).epsilon

            # As it is shown: put back in, it must not cost more than the target.
            sigma = rounded_up(least_noise(spent, epsilon, start.sigma), 6)
            while spent(sigma) > epsilon:
                sigma = rounded_up(math.nextafter(sigma, math.inf), 6)
            at = dataclasses.replace(start, sigma=sigma)
            found.append(TargetNoise(by, sigma, self._account(at)))
        return tuple(found)

    def check_names(self, given: Iterable[str], shown: Callable[[str], str] = spaced) -> None:
        """Refuse settings that the algorithm does not have, or that leave out one that it needs.

        `shown` is what errors call a setting.
        """
        fields = dataclasses.fields(self.settings)
        names = set(given)
        strange = sorted(names - {field.name for field in fields})
        if strange:
            raise UsageError(f"{self.name} has no setting {shown(strange[0])}: leave it out")
        missing = [
            shown(field.name)
            for field in fields
            if field.default is MISSING and field.name not in names
        ]
        if missing:
            raise UsageError(f"{self.name} also needs {', '.join(missing)}")

    def _account(self, settings: Any) -> Account:
        return Account(
            self.name,
            dataclasses.asdict(settings),
            self.paper(settings),
            None if self.tight is None else self.tight(settings),
            self.bounds(settings),
        )


@dataclass(frozen=True)
class TargetNoise:
    """Noise for a target epsilon, and what it buys."""

    by: str  # the value that meets the target: "paper", "same-rho tight" or "proven"
    sigma: float  # the least noise for it, rounded up to six digits
    account: Account  # all values at this noise

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration for JSON."""
        return {"by": self.by, "sigma": self.sigma, "account": self.account.as_dict()}


def least_noise(spent: Callable[[float], float], epsilon: float, start: float) -> float:
    """Return the least noise with at most the target epsilon, from above, to seven digits.

    `spent` is epsilon as a function of the noise, not increasing; the search begins at `start`. It
    is refused if no noise reaches the target, or any does.
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
