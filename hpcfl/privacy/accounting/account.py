"""What an algorithm costs in privacy: its settings, what its paper claims, and what is proven."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, make, option
from hpcfl.report.formats import counted, rounded_up
from hpcfl.values import MISSING, asdict, dataclass, replace

REPLACE_RECORD = "replace one record"
ADD_RECORD = "add or remove one record"
REPLACE_USER = "replace one user's data"
ADD_USER = "add or remove one user"
ZERO_USER = "replace one user's update by zeros"

Found = tuple[float, str]
"""An epsilon, and how it was found."""

# Noise and norms beyond these make no sense, and their squares would overflow.
POSITIVE: dict[str, Any] = {"at_least": 1e-50, "at_most": 1e50}
# How far from where it begins noise is looked for, as a logarithm.
_FARTHEST = math.log(1e12)


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, and what it takes for it to hold."""

    epsilon: float  # infinite if nothing is guaranteed
    delta: float
    adjacency: str  # in what two neighbouring datasets differ
    assumptions: tuple[str, ...]  # what must be so; each a clause without a full stop
    method: str  # how the value was found


@dataclass(frozen=True, kw_only=True)
class Account(OptionGroup, ABC):
    """The settings of an algorithm, and what training with them costs in privacy.

    An algorithm's account is a dataclass with its own settings besides these.
    """

    algorithm: ClassVar[str]

    sigma: float = option(
        MISSING,
        "Noise on a coordinate, in the units of --clip-norm: its standard deviation (or "
        "Laplace scale) on a mini-batch's mean gradient (cdp, dp-dsgd, fedsgd-dpc), on the "
        "sum of updates (dp-fedavg), on an update (locks).",
        **POSITIVE,
    )
    rounds: int = option(MISSING, "Number T of rounds.", at_least=0)
    devices: int = option(MISSING, "Number n of devices.", at_least=1)
    per_round: int = option(MISSING, "Devices in a round, exactly or in expectation.", at_least=1)
    clip_norm: float = option(
        1.0, "Norm to which a sample's gradient (dp-fedavg, locks: an update) is clipped.",
        **POSITIVE,
    )  # fmt: skip
    failure: float = 0.0  # probability, in a round, that what is assumed of it does not hold

    @abstractmethod
    def paper(self) -> Guarantee:
        """Return what the algorithm's paper claims."""

    @abstractmethod
    def bounds(self) -> tuple[Guarantee, ...]:
        """Return everything that is proven; not empty."""

    def proven(self) -> Guarantee:
        """Return the smallest bound that is proven."""
        return min(self.bounds(), key=lambda bound: bound.epsilon)

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Return the account for fields; UsageError if one is missing, unknown or out of range."""
        return make(cls, settings)

    @classmethod
    def with_epsilon(cls, epsilon: float, **settings: Any) -> dict[str, Self]:
        """Return accounts with the least noise for a target epsilon, rounded up to six digits.

        By "paper" the one for which the paper claims the target, and by "proven" the one for which
        it is proven. `settings` are fields of the class, without `sigma`.
        """
        if not epsilon > 0:
            raise UsageError(f"epsilon is {epsilon}; it must be above 0")
        start = cls.of(**settings, sigma=settings.get("clip_norm", 1.0))

        def least(by: str) -> Any:
            def spent(sigma: float) -> float:
                found = replace(start, sigma=sigma)
                return (found.paper() if by == "paper" else found.proven()).epsilon

            # Put back in as it is printed, the noise must not cost more than the target.
            sigma = rounded_up(least_noise(spent, epsilon, start.sigma), 6)
            while spent(sigma) > epsilon:
                sigma = rounded_up(math.nextafter(sigma, math.inf), 6)
            return replace(start, sigma=sigma)

        return {by: least(by) for by in ("paper", "proven")}

    def as_dict(self) -> dict[str, Any]:
        """Return the settings and all guarantees for JSON."""
        return {
            "algorithm": self.algorithm,
            "settings": asdict(self),
            "paper": asdict(self.paper()),
            "proven": asdict(self.proven()),
            "bounds": [asdict(bound) for bound in self.bounds()],
        }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_round > self.devices:
            raise UsageError(
                f"--per-round is {self.per_round}; it must be at most --devices, {self.devices}"
            )

    def guarantee(
        self,
        found: Callable[[float], Found],
        delta: float,
        adjacency: str,
        assumptions: tuple[str, ...],
        failure: float = 0.0,
    ) -> Guarantee:
        """Return what a theorem proves: `found` is from delta to epsilon, and how it is found.

        What it assumes may fail in every round, with a probability f that does not depend on the
        data. A mechanism that is (epsilon, delta')-differentially private but for that is (epsilon,
        delta' + f)-differentially private: `found` is asked with what is left of delta.
        """
        left = delta - self.rounds * failure
        if failure > 0:
            assumptions += (
                f"all this fails in a round with a probability of at most {failure:g}, and that of "
                f"all {counted(self.rounds, 'round')} is taken off delta",
            )
            if left <= 1e-12 * delta:  # which is what rounding leaves
                method = "failures leave nothing of delta"
                return Guarantee(math.inf, delta, adjacency, assumptions, method)
        epsilon, method = found(left)
        return Guarantee(epsilon, delta, adjacency, assumptions, method)

    @property
    def turns(self) -> int:
        """Rounds of the device that takes part most, if devices take turns: ceil(T r / n)."""
        return -(-self.rounds * self.per_round // self.devices)


def of_dropouts(exact: bool) -> str:
    """Return what is assumed of the users of a Poisson sample who drop out."""
    if exact:
        return (
            "of the users of a round an exact number drops out, all as likely: one user more moves "
            "a sum by up to twice the norm"
        )
    return "whether a user drops out does not depend on who else is in a round"


def least_noise(spent: Callable[[float], float], epsilon: float, start: float) -> float:
    """Return the least noise with at most the target epsilon, from above, to seven digits.

    `spent` is epsilon as a function of the noise, not increasing; the search begins at `start`.
    UsageError if no noise reaches the target, or any does.
    """
    from scipy.optimize import brentq

    known: dict[float, float] = {}

    def excess(log_sigma: float) -> float:
        if log_sigma not in known:
            value = spent(math.exp(log_sigma))
            known[log_sigma] = math.log(min(max(value, 1e-300), 1e300)) - math.log(epsilon)
        return known[log_sigma]

    low = high = math.log(start)
    while excess(high) > 0:
        low, high = high, high + math.log(4)
        if high > math.log(start) + _FARTHEST:
            raise UsageError(f"no noise gives an epsilon of {epsilon:g}: other releases cost more")
    while excess(low) <= 0:
        low, high = low - math.log(4), low
        if low < math.log(start) - _FARTHEST:
            raise UsageError(f"an epsilon of {epsilon:g} takes no noise: nothing is released")
    brentq(excess, low, high, xtol=1e-8)
    sigma = math.exp(min(u for u, value in known.items() if value <= 0))
    while spent(sigma) > epsilon:  # the last digit: exp of a logarithm
        sigma = math.nextafter(sigma, math.inf) * (1 + 1e-12)
    return sigma
