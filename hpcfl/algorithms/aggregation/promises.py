"""What a round promises those who take part, checked against what happened in it.

A promise is made for a number of devices, of colluders and of dropouts. What comes to pass is
another matter: devices leave early, or are made to. So each promise says what must have happened
for it to hold, and both sides ask it at the point after which harm could be done: the server when
it knows whose sum is to be unmasked, a device when it is asked to. Where it is broken the round
ends, with a sentence, before anything is revealed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Outcome:
    """What a round has come to when its sum is about to be unmasked."""

    devices: int  # N, of the round
    survivors: int  # of them in the sum
    # Of each cohort, how many are in its sum: all cohorts at the server, its own at a device.
    cohorts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    expelled: int = 0  # for the shares that they dealt, when the ring was known


class Promise(ABC):
    """Something that holds of a round, except with a small probability."""

    @property
    @abstractmethod
    def claim(self) -> str:
        """What is promised, against whom and given what, in a sentence without a full stop."""

    @property
    @abstractmethod
    def worst(self) -> float:
        """At most how likely it is that the promise fails in any round that is accepted.

        The probability is over what nobody chooses: the order of the ring, who of a population
        takes part. 0 for a promise that holds for certain. This is what an account of many rounds
        is charged beforehand.
        """

    def failure(self, outcome: Outcome) -> float:
        """Return the same for a round with this outcome; by default the outcome does not matter."""
        return self.worst

    def broken(self, outcome: Outcome) -> str | None:
        """Return in a clause why the promise does not hold after all; None if it does."""
        return None


@dataclass(frozen=True)
class LargeSum(Promise):
    """The server learns no sum of fewer devices' vectors than the threshold."""

    threshold: int

    @property
    def worst(self) -> float:
        return 0.0

    def broken(self, outcome: Outcome) -> str | None:
        if outcome.survivors >= self.threshold:
            return None
        return f"a sum of {outcome.survivors} devices is not one of {self.threshold}"


@dataclass(frozen=True)
class FewCollude(LargeSum):
    """The same, unless more collude than are reckoned with."""

    exceeded: float  # probability that more do

    @property
    def worst(self) -> float:
        return self.exceeded

    @property
    def but(self) -> str:
        """The end of the claim, which says so."""
        if not self.exceeded:
            return ""
        return f". The probability that more collude is at most 2^{math.log2(self.exceeded):.1f}"


@dataclass(frozen=True)
class Certain(Promise):
    """What holds whatever happens in the round."""

    text: str

    @property
    def claim(self) -> str:
        return self.text

    @property
    def worst(self) -> float:
        return 0.0


def objection(promises: Iterable[Promise], outcome: Outcome) -> str | None:
    """Return why the first promise that is broken is; None if all hold."""
    for promise in promises:
        broken = promise.broken(outcome)
        if broken is not None:
            return broken
    return None
