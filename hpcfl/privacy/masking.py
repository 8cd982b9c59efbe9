"""Who masks a coordinate with whom: by formula, and drawn by chance.

A protocol says which of these kinds it is, with its parameters; what that exposes to a curious
server follows (:mod:`hpcfl.privacy.exposure`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.privacy import formulas, simulate
from hpcfl.privacy.cohorts import honest_in_cohort
from hpcfl.privacy.distributions import Floats
from hpcfl.privacy.population import Population


@dataclass(frozen=True)
class Closed:
    """The closed forms of a kind of masking; None where there is none."""

    contributors: float  # expected number of honest survivors that send a coordinate
    sent: float  # fraction of its d coordinates that such a device sends,
    alone_of_dim: float  # and of which its value is exposed alone
    sole: float | None = None  # fraction of the coordinates with exactly one contributor,
    split: float | None = None  # and with more than one sum
    # Probability of an anonymity set of size s, seen from a sent value, at index s.
    sizes: Floats | None = None


class Masking(ABC):
    """The masks at a coordinate of a round."""

    alpha: float | None = None  # fraction of the coordinates that a device sends; None for all
    degree: int | None = None  # neighbours of a device in the masking graph; None for all
    masks: ClassVar[bool] = True  # whether anything is masked,
    between_devices: ClassVar[bool] = True  # by what two devices have in common

    @property
    def cohort(self) -> int | None:
        """Number m of devices in a cohort; None without cohorts."""
        return None

    def against(self, population: Population) -> Masking:
        """Return what is left of it against these colluders."""
        return self

    @abstractmethod
    def closed(self, population: Population) -> Closed:
        """Return the closed forms for these devices, colluders and dropouts."""

    def alone_of_sent(self, population: Population) -> float:
        """Return the share of the values sent by honest survivors that are exposed alone.

        Kinds whose other closed forms take time quadratic in N have a way past those.
        """
        closed = self.closed(population)
        return closed.alone_of_dim / closed.sent

    @abstractmethod
    def draw(self, honest: simulate.Flags, generator: np.random.Generator) -> simulate.Drawn:
        """Draw the masks at one coordinate of each sample; see :data:`simulate.Draw`."""


@dataclass(frozen=True)
class InTheClear(Masking):
    """Everybody sends everything, and nothing is masked."""

    masks = False

    def closed(self, population: Population) -> Closed:
        survivors, probability = population.honest_survivors()
        return Closed(
            contributors=population.mean_honest_survivors,
            sent=1.0,
            alone_of_dim=1.0,
            sole=_at(survivors == 1, probability),
            split=_at(survivors > 1, probability),
            sizes=np.array([0.0, 1.0]),
        )

    def draw(self, honest: simulate.Flags, generator: np.random.Generator) -> simulate.Drawn:
        none = np.empty(0, np.int64)
        return simulate.Drawn(np.ones_like(honest), none, none)


@dataclass(frozen=True)
class InCohorts(Masking):
    """A coordinate is sent by a cohort drawn by chance, masked within it.

    Neighbours of a device are those on a ring of the members (see :func:`ring_degree`).
    """

    members: int  # devices that send a coordinate: all N where everybody sends everything
    degree: int | None = None
    alpha: float | None = None

    @property
    def cohort(self) -> int | None:
        return None if self.alpha is None else self.members

    def alone_of_sent(self, population: Population) -> float:
        # Members are chosen, and put on their ring, by chance: so a member's neighbours are any of
        # all other devices, and their number alone matters.
        degree = self.members - 1 if self.degree is None else self.degree
        survivors, weight = formulas.size_biased(*population.honest_survivors())
        return float(weight @ formulas.ring_alone(population.devices, degree, survivors))

    def closed(self, population: Population) -> Closed:
        members, degree = self.members, self.degree
        honest = honest_in_cohort(population, members)
        size, weight = formulas.size_biased(np.arange(members + 1), honest)
        sent = members / population.devices
        sizes: Floats | None
        if degree is None:
            split, sizes = 0.0, np.zeros(members + 1)
            sizes[size] = weight
        else:
            likely = np.flatnonzero(honest > 1e-20)  # the others change nothing
            splits = [formulas.ring_split(members, degree, int(number)) for number in likely]
            # Rounding must not make it more than 1.
            split, sizes = min(1.0, float(honest[likely] @ splits)), None
        return Closed(
            contributors=sent * population.mean_honest_survivors,
            sent=sent,
            alone_of_dim=sent * self.alone_of_sent(population),
            sole=float(honest[1]),
            split=split,
            sizes=sizes,
        )

    def draw(self, honest: simulate.Flags, generator: np.random.Generator) -> simulate.Drawn:
        degree = self.members - 1 if self.degree is None else self.degree
        return simulate.ring(self.members, degree, honest, generator)


@dataclass(frozen=True)
class OnlySummed(InCohorts):
    """Everybody sends everything under a mask of its own; only the sum of all is ever known."""

    between_devices = False


@dataclass(frozen=True)
class UnderOneKey(OnlySummed):
    """Only the sum is known while no device colludes; one that does opens everything."""

    def against(self, population: Population) -> Masking:
        return InTheClear() if population.colluding else self


@dataclass(frozen=True)
class BySelection(Masking):
    """Each pair of neighbours selects a coordinate with probability alpha / k, and masks it."""

    devices: int
    alpha: float
    degree: int | None = None

    @property
    def _graph(self) -> formulas.SparseGraph:
        return formulas.SparseGraph(self.devices, self.alpha, self.degree)

    def alone_of_sent(self, population: Population) -> float:
        survivors, weight = formulas.size_biased(*population.honest_survivors())
        return float(weight @ self._graph.alone(survivors)) / self._graph.sent

    def closed(self, population: Population) -> Closed:
        graph = self._graph
        survivors, weight = formulas.size_biased(*population.honest_survivors())
        mean = population.mean_honest_survivors
        closed = Closed(
            contributors=mean * graph.sent,
            sent=graph.sent,
            alone_of_dim=graph.sent * self.alone_of_sent(population),
        )
        if self.degree is not None:
            return closed
        numbers, probability = population.honest_survivors()
        return replace(
            closed,
            sole=mean * float(weight @ graph.sole(survivors)),
            # Rounding must not make it negative.
            split=max(0.0, 1 - float(probability @ graph.one_sum(numbers))),
            sizes=weight @ graph.component_sizes(survivors) / graph.sent,
        )

    def draw(self, honest: simulate.Flags, generator: np.random.Generator) -> simulate.Drawn:
        degree = self.devices - 1 if self.degree is None else self.degree
        return simulate.selecting_pairs(self.alpha, degree, honest, generator)


def check_alpha(alpha: float) -> None:
    """Refuse what is not a fraction of the coordinates."""
    if not 0 < alpha <= 1:
        raise UsageError(f"alpha is {alpha}; it must be above 0, at most 1")


def largest_degree(devices: int) -> int:
    """Return the largest number of neighbours to ask for, which links all: an even one."""
    return max(2, devices // 2 * 2)


def ring_degree(degree: int | None, devices: int, members: int | None = None) -> int | None:
    """Return a number of neighbours as kinds of masking take it: None where all are neighbours.

    It refuses a degree that no ring of the `members`, by default all `devices`, has.
    """
    if degree is None:
        return None
    if degree < 2 or (degree % 2 and degree != devices - 1):
        raise UsageError(
            f"the degree is {degree}; a Harary graph on a ring needs an even number from 2"
        )
    if degree > largest_degree(devices):
        raise UsageError(
            f"the degree is {degree}, and a device of {devices} has {devices - 1} others: leave it "
            "out, to link all"
        )
    return None if degree >= (members or devices) - 1 else degree


def _at(chosen: Any, probability: Floats) -> float:
    return float(probability[chosen].sum())
