"""What a round's promises are made against: who colludes, and who drops out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Counts, Floats, binomial, hypergeometric
from hpcfl.privacy.population import count_of
from hpcfl.report.formats import counted

if TYPE_CHECKING:
    from hpcfl.algorithms.parameters import Parameters

# Devices that may vanish besides those that are planned to: one that is hostile, or dies, must not
# break what is promised to all others.
SPARE = 1
# Devices of those that hold shares of a secret, or pieces of a vector, which may answer falsely in
# every plan; so many more that answer tell which ones.
LIARS = 1
REDUNDANT = 2 * LIARS


@dataclass(frozen=True)
class Threat:
    """Devices that tell the server all they know, and others that drop out.

    The worst that can be is assumed: those that collude stay to the end, and all that drop out are
    honest. Whoever drops out does so whatever its place is on a ring.
    """

    devices: int  # number N of devices of a round
    colluding: int  # number A of devices that collude, of the population
    dropped: int  # most devices of a round that may drop out
    population: int  # number n that those of a round are drawn from, at random; N if all take part
    # Each device, but for one that vanishes whatever happens, drops out with this probability;
    # `dropped` is then seldom exceeded.
    rate: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.devices <= self.population:
            raise UsageError(
                f"a round has {self.devices} of {self.population} devices; it must have 2 to all"
            )

    @classmethod
    def of(cls, plan: Parameters) -> Threat:
        """Return what the plan of a round reckons with."""
        devices, rate = plan.devices, plan.dropout
        population = plan.population or devices
        colluding = count_of(plan.gamma, population)
        drawn = plan.dropout_model == "bernoulli" and rate > 0
        if drawn:
            failure = 2.0**-plan.correctness_bits
            dropped = exceeded_seldom(binomial(devices, rate, np.arange(devices + 1)), failure)
        else:
            dropped = count_of(rate, devices)
        dropped = min(dropped + SPARE, devices - 1)
        return cls(devices, colluding, dropped, population, rate if drawn else None)

    def with_dropped(self, dropped: int) -> Threat:
        """Return the same with another number of devices that have dropped out."""
        return replace(self, dropped=dropped, rate=None)

    @property
    def honest(self) -> int:
        """Number of devices of a round that do not collude, at the most."""
        return self.devices - (self.colluding if self.population == self.devices else 0)

    def colluding_among(self, count: int) -> Floats:
        """Return Pr[c] of c = 0 to `count` colluders among devices that chance has chosen."""
        if count == self.population:  # it need not be found out again and again
            everybody = np.zeros(count + 1)
            everybody[self.colluding] = 1.0
            return everybody
        numbers = np.arange(count + 1)
        return hypergeometric(self.population, self.colluding, count, numbers)

    def colluding_neighbours(self, count: int) -> Floats:
        """Return the same for the neighbours of an honest device."""
        numbers = np.arange(count + 1)
        return hypergeometric(self.population - 1, self.colluding, count, numbers)

    def surviving_neighbours(self, count: int) -> Floats:
        """Return the distribution of the survivors among the neighbours of a dropped device."""
        numbers = np.arange(count + 1)
        if self.rate is not None:
            return binomial(count - SPARE, 1 - self.rate, numbers)
        survivors = self.devices - max(self.dropped, 1)
        return hypergeometric(self.devices - 1, survivors, count, numbers)

    def all_gone(self, count: int, chosen: int = 0) -> float:
        """Return the probability that all of some devices in a row collude or have dropped out.

        So many `chosen` ones are removed by somebody who knows where they are.
        """
        colluding = self.colluding_among(self.devices)
        numbers: Counts = np.flatnonzero(colluding > 0)
        gone = np.minimum(numbers + self.dropped, self.devices)[:, np.newaxis]
        enough = np.arange(max(0, count - chosen), count + 1)
        return float(
            colluding[numbers] @ hypergeometric(self.devices, gone, count, enough).sum(axis=1)
        )

    # A protocol that chooses its own parameters asks these hundreds of times, whenever it is built.
    @lru_cache(maxsize=4096)  # noqa: B019
    def most_colluding(self, count: int, failure: float, draws: int = 1) -> int:
        """Return the most colluders of `count` devices, in `draws` sets, but for a probability."""
        return exceeded_seldom(self.colluding_among(count), failure / draws)

    @lru_cache(maxsize=4096)  # noqa: B019
    def more_colluding(self, count: int, most: int) -> float:
        """Return the probability that `count` devices hold more than `most` colluders."""
        return float(self.colluding_among(count)[most + 1 :].sum())

    @lru_cache(maxsize=4096)  # noqa: B019
    def most_dropped(self, count: int, failure: float) -> int:
        """Return the most that drop out of `count` devices of a plan, but for a probability.

        The one that vanishes whatever happens is one of them.
        """
        numbers = np.arange(count + 1)
        if self.rate is not None:
            dropped = binomial(count, self.rate, numbers)
        else:
            dropped = hypergeometric(self.devices, self.dropped - SPARE, count, numbers)
        return min(count, exceeded_seldom(dropped, failure) + SPARE)

    def __str__(self) -> str:
        if self.population == self.devices:
            return counted(self.colluding, "device")
        return f"{self.colluding} of {self.population} devices, from which each round draws,"


def exceeded_seldom(distribution: Floats, failure: float) -> int:
    """Return the least number that is exceeded with at most a probability, of Pr[0], Pr[1], ..."""
    # Pr[X > c] for c = 0, 1, ..., added up from the small terms.
    beyond = np.append(np.cumsum(distribution[::-1])[::-1][1:], 0.0)
    return int(np.argmax(beyond <= failure))
