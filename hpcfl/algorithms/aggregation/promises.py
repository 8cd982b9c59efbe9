"""What a round promises to its participants, checked against what happened in it.

Devices may leave early or be expelled, so each promise defines what must have happened for it to
hold. The server checks it when the survivors are known, and a device when it is asked to unmask. If
a promise is broken, the round ends with the reason before anything is revealed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcfl.report.formats import counted


@dataclass(frozen=True)
class Outcome:
    """What has happened in a round when its sum is about to be unmasked."""

    devices: int  # N, of the round
    survivors: int  # of them in the sum
    # How many are in the sum of each cohort: of all at the server, of its own at a device.
    cohorts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    expelled: int = 0  # for the shares that they dealt, when the ring was known


class Promise(ABC):
    """A property of a round that holds except with a small probability."""

    @property
    @abstractmethod
    def claim(self) -> str:
        """What is promised, against whom and on what conditions; no full stop at the end."""

    @property
    @abstractmethod
    def worst(self) -> float:
        """At most how likely it is that the promise fails in any round that is accepted.

        The probability is over what nobody chooses: the order of the ring, who of a population
        takes part. An account of many rounds is charged this beforehand.
        """

    def failure(self, outcome: Outcome) -> float:
        """Return the same for a round with this outcome; by default the outcome does not matter."""
        return self.worst

    def broken(self, outcome: Outcome) -> str | None:
        """Return in a clause why the promise does not hold after all; None if it does."""
        return None


@dataclass(frozen=True)
class Certain(Promise):
    """A promise for every sum of enough devices, except with a probability known beforehand."""

    claim: str = ""
    least: int = 0  # devices in a sum: devices and helpers help with no smaller one
    worst: float = 0.0

    def broken(self, outcome: Outcome) -> str | None:
        if outcome.survivors >= self.least:
            return None
        return f"a sum of {outcome.survivors} devices is not one of {self.least}"


def unless_more_collude(exceeded: float) -> str:
    """Return the end of a claim that fails where more devices collude than are reckoned with."""
    if not exceeded:
        return ""
    return f". The probability that more collude is at most 2^{math.log2(exceeded):.1f}"


@dataclass(frozen=True)
class NoiseInSum(Promise):
    """The noise of enough honest devices is in every sum."""

    honest: int  # how many, at the least
    colluding: int  # most of a sum's devices that collude
    exceeded: float  # probability that more do

    @property
    def claim(self) -> str:
        return (
            f"every sum holds the noise of at least {counted(self.honest, 'honest device')}, and "
            f"{counted(self.colluding, 'other device')} in it may collude: devices refuse to "
            "unmask a smaller sum"
        )

    @property
    def worst(self) -> float:
        # Also where one's own noise is all that was planned for: if more are there, an account
        # takes all of them for honest but so many.
        return self.exceeded

    def broken(self, outcome: Outcome) -> str | None:
        summed = int(outcome.cohorts.min(initial=outcome.survivors))
        # One whose noise is its own has nothing to fear from how few the others are.
        if self.honest == 1 or summed - self.colluding >= self.honest:
            return None
        return (
            f"a sum holds the noise of {summed} devices, of which {self.colluding} may collude, "
            f"and that of {self.honest} honest ones was promised"
        )


def objection(promises: Iterable[Promise], outcome: Outcome) -> str | None:
    """Return why the first promise that is broken is; None if all hold."""
    return next((why for one in promises if (why := one.broken(outcome)) is not None), None)


def failure_of(promises: Sequence[Promise], outcome: Outcome) -> float:
    """Return at most how likely any promise fails; NaN where nothing is promised."""
    if not promises:
        return math.nan
    return min(1.0, sum(promise.failure(outcome) for promise in promises))
