"""What a round promises to its participants, and how the outcome is checked against it.

Devices may leave early or be expelled, so each promise defines what must have happened for it to
hold. The server checks it when the survivors are known, and a device when it is asked to unmask. If
a promise is broken, the round ends with an error before anything is revealed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfl.report.formats import counted
from hpcfl.values import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """The outcome of a round just before its sum is unmasked."""

    devices: int  # N, of the round
    survivors: int  # number of them in the sum
    # Survivors of each cohort: the server has all cohorts, a device only its own.
    cohorts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    expelled: int = 0  # devices expelled for wrong shares, after the ring was known


class Promise(ABC):
    """A property of a round that holds except with a small probability."""

    @property
    @abstractmethod
    def claim(self) -> str:
        """The promise, the adversary and the conditions, without a full stop at the end."""

    @property
    @abstractmethod
    def worst(self) -> float:
        """Upper bound of the probability that the promise fails in any accepted round.

        It is over choices that no party controls: the order of the ring, and the participants from
        a population. An account of many rounds is charged this probability beforehand.
        """

    def failure(self, outcome: Outcome) -> float:
        """Return the same bound for a round with this outcome; by default, it is `worst`."""
        return self.worst

    def broken(self, outcome: Outcome) -> str | None:
        """Return a clause that says why the outcome breaks the promise, or None."""
        return None


@dataclass(frozen=True)
class Certain(Promise):
    """A promise for every sum of enough devices, except with a fixed probability."""

    claim: str = ""
    least: int = 0  # devices in a sum; devices and helpers do not help to unmask a smaller one
    worst: float = 0.0

    def broken(self, outcome: Outcome) -> str | None:
        if outcome.survivors >= self.least:
            return None
        return f"a sum of {outcome.survivors} devices is not one of {self.least}"


def unless_more_collude(exceeded: float) -> str:
    """Return the end of a claim that fails if more devices collude than assumed."""
    if not exceeded:
        return ""
    return f". The probability that more collude is at most 2^{math.log2(exceeded):.1f}"


@dataclass(frozen=True)
class NoiseInSum(Promise):
    """Every sum includes the noise of enough honest devices."""

    honest: int  # minimum number of honest devices
    colluding: int  # maximum number of colluders in a sum
    exceeded: float  # probability that more collude

    @property
    def claim(self) -> str:
        return (
            f"every sum holds the noise of at least {counted(self.honest, 'honest device')}, and "
            f"{counted(self.colluding, 'other device')} in it may collude: devices refuse to "
            "unmask a smaller sum"
        )

    @property
    def worst(self) -> float:
        # This holds also if the plan relies on a device's own noise only: with more survivors, an
        # account takes all but `colluding` of them as honest.
        return self.exceeded

    def broken(self, outcome: Outcome) -> str | None:
        summed = int(outcome.cohorts.min(initial=outcome.survivors))
        # A device that relies on its own noise only does not need other devices.
        if self.honest == 1 or summed - self.colluding >= self.honest:
            return None
        return (
            f"a sum holds the noise of {summed} devices, of which {self.colluding} may collude, "
            f"and that of {self.honest} honest ones was promised"
        )


def objection(promises: Iterable[Promise], outcome: Outcome) -> str | None:
    """Return the reason of the first broken promise, or None if all hold."""
    return next((why for one in promises if (why := one.broken(outcome)) is not None), None)


def failure_of(promises: Sequence[Promise], outcome: Outcome) -> float:
    """Return an upper bound of the probability that any promise fails; NaN without any."""
    if not promises:
        return math.nan
    return min(1.0, sum(promise.failure(outcome) for promise in promises))
