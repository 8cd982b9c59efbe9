"""The threat model of a round: colluding devices and dropouts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Counts, Floats, binomial, hypergeometric
from hpcfl.privacy.population import count_of
from hpcfl.report.formats import counted
from hpcfl.values import dataclass, replace

if TYPE_CHECKING:
    from hpcfl.algorithms.parameters import Parameters

# Devices that may vanish beyond the planned dropouts: a hostile or crashed device must not break
# the promises to the others.
SPARE = 1
# Holders of shares of a secret, or of pieces of a vector, that may answer falsely in every plan;
# `REDUNDANT` additional answers identify them.
LIARS = 1
REDUNDANT = 2 * LIARS


@dataclass(frozen=True)
class Threat:
    """The devices that share all their knowledge with the server, and those that drop out.

    The worst case is assumed: colluding devices stay to the end, and all dropouts are honest.
    Dropping out is independent of the position on a ring.
    """

    devices: int  # number N of devices of a round
    colluding: int  # number A of colluding devices in the population
    dropped: int  # most devices of a round that may drop out
    population: int  # number n of devices from which a round draws N; N if all take part
    # Probability that a device drops out (except the `SPARE` one, which always vanishes);
    # `dropped` is then exceeded with a small probability.
    rate: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.devices <= self.population:
            raise UsageError(
                f"a round has {self.devices} of {self.population} devices; it must have 2 to all"
            )

    @classmethod
    def of(cls, plan: Parameters) -> Threat:
        """Return the threat that the plan of a round assumes."""
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
        """Return the same threat with another number of dropouts."""
        return replace(self, dropped=dropped, rate=None)

    @property
    def honest(self) -> int:
        """Upper bound on the number of honest devices in a round."""
        return self.devices - (self.colluding if self.population == self.devices else 0)

    def colluding_among(self, count: int) -> Floats:
        """Return Pr[c] of c = 0, ..., `count` colluders among `count` randomly chosen devices."""
        if count == self.population:  # the number is certain
            everybody = np.zeros(count + 1)
            everybody[self.colluding] = 1.0
            return everybody
        numbers = np.arange(count + 1)
        return hypergeometric(self.population, self.colluding, count, numbers)

    def colluding_neighbours(self, count: int) -> Floats:
        """Return the distribution of colluders among `count` neighbours of an honest device."""
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
        """Return the probability that `count` consecutive devices all collude or have dropped out.

        An adversary that knows the positions removes `chosen` of them.
        """
        colluding = self.colluding_among(self.devices)
        numbers: Counts = np.flatnonzero(colluding > 0)
        gone = np.minimum(numbers + self.dropped, self.devices)[:, np.newaxis]
        enough = np.arange(max(0, count - chosen), count + 1)
        return float(
            colluding[numbers] @ hypergeometric(self.devices, gone, count, enough).sum(axis=1)
        )

    # A protocol that chooses its own parameters calls these hundreds of times in its constructor.
    @lru_cache(maxsize=4096)  # noqa: B019
    def most_colluding(self, count: int, failure: float, draws: int = 1) -> int:
        """Bound the colluders in each of `draws` sets of `count`, but for probability `failure`."""
        return exceeded_seldom(self.colluding_among(count), failure / draws)

    @lru_cache(maxsize=4096)  # noqa: B019
    def more_colluding(self, count: int, most: int) -> float:
        """Return the probability that `count` devices hold more than `most` colluders."""
        return float(self.colluding_among(count)[most + 1 :].sum())

    @lru_cache(maxsize=4096)  # noqa: B019
    def most_dropped(self, count: int, failure: float) -> int:
        """Return a bound on the dropouts among `count` devices, but for probability `failure`.

        The bound includes the `SPARE` device, which always vanishes.
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
    """Return the least c with Pr[X > c] <= `failure`, from Pr[X = 0], Pr[X = 1], ..."""
    # Pr[X > c] for c = 0, 1, ..., added up from the small terms.
    beyond = np.append(np.cumsum(distribution[::-1])[::-1][1:], 0.0)
    return int(np.argmax(beyond <= failure))
