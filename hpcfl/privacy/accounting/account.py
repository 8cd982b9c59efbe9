"""What an algorithm costs in privacy: its settings, what its paper claims, and what is proven."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field
from typing import Any, ClassVar, Self

from hpcfl.errors import UsageError, no_such
from hpcfl.options.definition import Section, described
from hpcfl.report.formats import counted, rounded_up
from hpcfl.report.jsontext import finite

REPLACE_RECORD = "replace one record"
ADD_RECORD = "add or remove one record"
REPLACE_USER = "replace one user's data"
ADD_USER = "add or remove one user"
ZERO_USER = "replace one user's update by zeros"

# Settings beyond these make no sense, and their squares would overflow.
_SMALLEST, _LARGEST = 1e-50, 1e50


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, and what it takes for it to hold."""

    epsilon: float  # infinite if nothing is guaranteed
    delta: float
    adjacency: str  # in what two neighbouring datasets differ
    assumptions: tuple[str, ...]  # what must be so; each a clause without a full stop
    method: str  # how the value was found

    def as_dict(self) -> dict[str, Any]:
        """Return the guarantee for JSON, an infinite epsilon as None."""
        return dict(finite(asdict(self)))


@dataclass(frozen=True)
class Account(ABC):
    """The settings of an algorithm, and what training with them costs in privacy.

    An algorithm's account is a dataclass with its own settings besides these.
    """

    algorithm: ClassVar[str]
    heading: ClassVar[Section] = Section.PRIVACY

    sigma: float = field(
        metadata=described(
            "Noise on a coordinate, in the units of --clip-norm: its standard deviation (or "
            "Laplace scale) on a mini-batch's mean gradient (cdp, dp-dsgd, fedsgd-dpc), on the "
            "sum of updates (dp-fedavg), on an update (locks)."
        )
    )
    rounds: int = field(metadata=described("Number T of rounds.", section=Section.SIZE))
    devices: int = field(metadata=described("Number n of devices.", section=Section.SIZE))
    per_round: int = field(
        metadata=described("Devices in a round, exactly or in expectation.", section=Section.SIZE)
    )

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
        """Return the account for settings; UsageError if one is missing, unknown or out of range.

        Parameters
        ----------
        **settings
            Fields of the class.
        """
        fields = dataclasses.fields(cls)
        strange = sorted(settings.keys() - {field.name for field in fields})
        if strange:
            raise UsageError(f"{cls.algorithm} has no setting {spaced(strange[0])}: leave it out")
        needed = [field.name for field in fields if field.default is MISSING]
        missing = [spaced(name) for name in needed if name not in settings]
        if missing:
            raise UsageError(f"{cls.algorithm} also needs {', '.join(missing)}")
        return cls(**settings)

    @classmethod
    def with_epsilon(cls, epsilon: float, **settings: Any) -> dict[str, Self]:
        """Return accounts with the least noise for a target epsilon.

        Parameters
        ----------
        epsilon : float
            The target, above 0.
        **settings
            Fields of the class, without `sigma`.

        Returns
        -------
        dict
            "paper" with the noise for which the paper claims the target, and "proven" with that for
            which it is proven. The noise is rounded up to six digits.
        """
        if not epsilon > 0:
            raise UsageError(f"epsilon is {epsilon}; it must be above 0")
        start = cls.of(**settings, sigma=settings.get("clip_norm", 1.0))

        found: dict[str, Self] = {}
        for by in ("paper", "proven"):

            def spent(sigma: float, by: str = by) -> float:
                return float(getattr(dataclasses.replace(start, sigma=sigma), by)().epsilon)

            # Put back in as it is printed, the noise must not cost more than the target.
            sigma = rounded_up(least_noise(spent, epsilon, start.sigma), 6)
            while spent(sigma) > epsilon:
                sigma = rounded_up(math.nextafter(sigma, math.inf), 6)
            found[by] = dataclasses.replace(start, sigma=sigma)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the settings and all guarantees for JSON."""
        # JSON knows no infinity.
        settings = {name: "inf" if one == math.inf else one for name, one in asdict(self).items()}
        return {
            "algorithm": self.algorithm,
            "settings": settings,
            "paper": self.paper().as_dict(),
            "proven": self.proven().as_dict(),
            "bounds": [bound.as_dict() for bound in self.bounds()],
        }

    def __post_init__(self) -> None:
        self.check(("sigma",), ("devices", "per_round"), ("rounds",))
        if self.per_round > self.devices:
            raise UsageError(
                f"{self.per_round} of {self.devices} devices a round; it can be at most all of them"
            )

    def check(
        self,
        positive: Iterable[str] = (),
        counts: Iterable[str] = (),
        naturals: Iterable[str] = (),
        **choices: Iterable[str],
    ) -> None:
        """Refuse fields that are not above 0, whole from 1 on, whole from 0 on, or of the choices.

        Those that are None are left out.
        """

        def refuse(name: str, value: Any, wanted: str) -> None:
            raise UsageError(f"{spaced(name)} is {value}; it must be {wanted}")

        for least, names in ((None, positive), (1, counts), (0, naturals)):
            for name in names:
                value = getattr(self, name)
                if value is None:
                    continue
                if least is None and not _SMALLEST <= value <= _LARGEST:
                    refuse(name, value, f"above 0, from {_SMALLEST:g} to {_LARGEST:g}")
                if least is not None and not (value >= least and float(value).is_integer()):
                    refuse(name, value, f"a whole number from {least} on")
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise no_such(spaced(name), getattr(self, name), known)

    def check_delta(self, delta: float) -> None:
        """Refuse a delta, or a probability of failure, that is none."""
        if not 0 < delta < 1:
            raise UsageError(f"delta is {delta}; it must be above 0 and below 1, for example 1e-5")
        failure = getattr(self, "failure", 0.0)
        if not 0 <= failure < 1:
            raise UsageError(f"failure is {failure}; it must be a probability from 0 to below 1")

    def check_at_most_all(self, name: str) -> None:
        """Refuse that a device takes part in more rounds than there are."""
        value = getattr(self, name)
        if value is not None and value > self.rounds:
            raise UsageError(
                f"{spaced(name)} is {value} of {counted(self.rounds, 'round')}; it can be at most "
                "all of them"
            )

    @property
    def turns(self) -> int:
        """Rounds of the device that takes part most, if devices take turns: ceil(T r / n)."""
        return -(-self.rounds * self.per_round // self.devices)


def after_failures(
    delta: float, rounds: int, failure: float, found: Callable[[float], tuple[float, str]]
) -> tuple[float, str]:
    """Return an epsilon, and how it is found, where an assumption may fail in every round.

    A mechanism that is (epsilon, delta')-differentially private but for an event of probability f,
    which does not depend on the data, is (epsilon, delta' + f)-differentially private: `found` is
    asked with what is left of delta, if anything is.
    """
    left = delta - rounds * failure
    if left <= 1e-12 * delta:  # which is what rounding leaves
        return math.inf, "failures leave nothing of delta"
    return found(left)


def failure_clauses(rounds: int, failure: float) -> tuple[str, ...]:
    """Return the assumption that goes with :func:`after_failures`; none without failures."""
    if failure == 0:
        return ()
    return (
        f"all this fails in a round with a probability of at most {failure:g}, and that of all "
        f"{counted(rounds, 'round')} is taken off delta",
    )


def spaced(name: str) -> str:
    """Return a setting's name in words: ``per_round`` is "per round"."""
    return name.replace("_", " ")


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
    farthest = math.log(1e12)
    while excess(high) > 0:
        low, high = high, high + math.log(4)
        if high - math.log(start) > farthest:
            raise UsageError(
                f"no noise gives an epsilon of {epsilon:g} with these settings: what does not "
                "depend on sigma spends more than that"
            )
    while excess(low) <= 0:
        low, high = low - math.log(4), low
        if math.log(start) - low > farthest:
            raise UsageError(
                f"an epsilon of {epsilon:g} takes no noise with these settings: nothing is released"
            )
    brentq(excess, low, high, xtol=1e-8)
    sigma = math.exp(min(u for u, value in known.items() if value <= 0))
    while spent(sigma) > epsilon:  # the last digit: exp of a logarithm
        sigma = math.nextafter(sigma, math.inf) * (1 + 1e-12)
    return sigma
