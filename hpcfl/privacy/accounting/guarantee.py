"""A privacy guarantee with everything it depends on, and the account of an algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpcfl.errors import UsageError, no_such
from hpcfl.report.formats import counted
from hpcfl.report.jsontext import finite

REPLACE_RECORD = "replace one record"
ADD_RECORD = "add or remove one record"
REPLACE_USER = "replace one user's data"
ADD_USER = "add or remove one user"
ZERO_USER = "replace one user's update by zeros"

#: How an infinite epsilon was found, where failures take up all of delta.
NOTHING_LEFT = "failures leave nothing of delta"


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
class Account:
    """What an algorithm costs in privacy."""

    algorithm: str
    settings: Mapping[str, Any]
    paper: Guarantee  # what the algorithm's paper claims
    tight: Guarantee | None  # the paper's rho, where it has one, converted exactly
    bounds: tuple[Guarantee, ...]  # all that is proven under the settings; not empty

    @property
    def proven(self) -> Guarantee:
        """The smallest bound that is proven."""
        return min(self.bounds, key=lambda bound: bound.epsilon)

    def as_dict(self) -> dict[str, Any]:
        """Return the account for JSON."""
        return {
            "algorithm": self.algorithm,
            "settings": {
                # JSON knows no infinity.
                name: "inf" if value == math.inf else value
                for name, value in self.settings.items()
            },
            "paper": self.paper.as_dict(),
            "same_rho_tight": None if self.tight is None else self.tight.as_dict(),
            "proven": self.proven.as_dict(),
            "bounds": [bound.as_dict() for bound in self.bounds],
        }


@dataclass(frozen=True)
class Schedule:
    """What the settings of every algorithm begin with."""

    sigma: float  # noise on a coordinate; of what, the algorithm says
    rounds: int
    devices: int
    per_round: int  # devices in a round: exactly, or expected

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

        Those that are None are left out; a probability of failure is checked if there is one.
        """

        def given(names: Iterable[str]) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

        check_positive(**given(positive))
        check_count(**given(counts))
        check_count(**given(naturals), least=0)
        for name, value in given(choices).items():
            if value not in choices[name]:
                raise no_such(spaced(name), value, choices[name])
        failure = getattr(self, "failure", 0.0)
        if not 0 <= failure < 1:
            raise UsageError(f"failure is {failure}; it must be a probability from 0 to below 1")

    @property
    def turns(self) -> int:
        """Rounds of the device that takes part most, if devices take turns: ceil(T r / n)."""
        return -(-self.rounds * self.per_round // self.devices)

    def check_participations(self, participations: int | None) -> None:
        """Refuse more rounds of a device than there are."""
        if participations is not None and participations > self.rounds:
            raise UsageError(
                f"a device takes part in {participations} of {counted(self.rounds, 'round')}; "
                "it can be in at most all of them"
            )


def check_positive(**values: float) -> None:
    """Refuse numbers that are not above 0 and finite, naming the first of them."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{spaced(name)} is {value}; it must be above 0 and finite")


def check_count(*, least: int = 1, **values: int) -> None:
    """Refuse numbers that are not whole or below `least`, naming the first of them."""
    for name, value in values.items():
        if not math.isfinite(value) or value != int(value) or value < least:
            raise UsageError(
                f"{spaced(name)} is {value}; it must be a whole number from {least} on"
            )


def less_failures(delta: float, rounds: int, failure: float) -> float:
    """Return what is left of delta when an assumption may fail in every round; at least 0.

    A mechanism that is (epsilon, delta')-differentially private but for an event of probability f,
    which does not depend on the data, is (epsilon, delta' + f)-differentially private.
    """
    left = delta - rounds * failure
    return left if left > 1e-12 * delta else 0.0  # less is what rounding leaves


def failure_clauses(rounds: int, failure: float) -> tuple[str, ...]:
    """Return the assumption that goes with :func:`less_failures`; none without failures."""
    if failure == 0:
        return ()
    return (
        f"all this fails in a round with a probability of at most {failure:g}, and that of all "
        f"{counted(rounds, 'round')} is taken off delta",
    )


def check_delta(delta: float) -> None:
    """Refuse a delta that is not strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}; it must be above 0 and below 1, for example 1e-5")


def spaced(name: str) -> str:
    """Return a setting's name in words: ``per_round`` is "per round"."""
    return name.replace("_", " ")
