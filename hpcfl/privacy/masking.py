"""Kinds of masking: which devices mask a coordinate together, and what this exposes.

N devices, A of them colluding, H = N - A honest, h honest and surviving. After a round the server
knows the private masks of all survivors, the pairwise masks of dropped devices, and those its
colluders share. Two honest survivors that mask a coordinate together form an edge; at every
coordinate the server learns the sum over each connected component of this graph, and nothing else.
The component of a value is its *anonymity set*. Secret sharing is assumed to hold: colluding
devices cannot open further masks.

A protocol names its kind of masking. Each kind has a formula for the share of the values sent by
honest survivors that is exposed alone, and draws its graph for :mod:`hpcfl.privacy.exposure`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.privacy.distributions import Counts, Floats, hypergeometric, log_binomial
from hpcfl.privacy.population import Population
from hpcfl.report.formats import counted
from hpcfl.values import dataclass

Flags = NDArray[np.bool_]


# Random masks of several samples: which devices send the coordinate if they survive, shape
# (samples, N), and the two vertices of every edge. Vertex i * N + j is device j of sample i. Edges
# whose ends are not both honest survivors are ignored.
Drawn = tuple[Flags, Counts, Counts]


class Masking(ABC):
    """The masks at one coordinate of a round, for one kind of protocol."""

    alpha: float | None = None  # fraction of the coordinates that a device sends; None for all
    degree: int | None = None  # neighbours of a device in the masking graph; None for all

    @property
    def cohort(self) -> int | None:
        """Number m of devices in a cohort; None without cohorts."""
        return None

    @property
    def words(self) -> str:
        """Description of which devices share masks; "" without masks."""
        near = "all others" if self.degree is None else counted(self.degree, "neighbour")
        return f"between a device and {near}{'' if self.cohort is None else ' of its cohort'}"

    def sent(self, population: Population) -> float:
        """Return the fraction of its coordinates that a device sends."""
        return 1.0

    def against(self, population: Population) -> Masking:
        """Return the masking that remains against the colluders of `population`."""
        return self

    @abstractmethod
    def alone_of_sent(self, population: Population) -> float:
        """Return the share of the values sent by honest survivors that are exposed alone."""

    def sole(self, population: Population) -> float | None:
        """Return the share of coordinates with exactly one honest sender; None if unknown."""
        return None

    @abstractmethod
    def draw(self, honest: Flags, generator: np.random.Generator) -> Drawn:
        """Draw the masks at one coordinate of each sample; `honest` has shape (samples, N)."""


@dataclass(frozen=True)
class InTheClear(Masking):
    """Every device sends all coordinates without masks."""

    words = ""

    def alone_of_sent(self, population: Population) -> float:
        return 1.0

    def sole(self, population: Population) -> float:
        survivors, probability = population.honest_survivors()
        return float(probability[survivors == 1].sum())

    def draw(self, honest: Flags, generator: np.random.Generator) -> Drawn:
        none = np.empty(0, np.int64)
        return np.ones_like(honest), none, none


@dataclass(frozen=True)
class InCohorts(Masking):
    """A random cohort sends a coordinate, masked within the cohort.

    Members lie on a ring in random order and share masks with k / 2 neighbours on either side.
    """

    members: int  # devices that send a coordinate; N if every device sends all of them
    degree: int | None = None
    alpha: float | None = None

    @property
    def cohort(self) -> int | None:
        return None if self.alpha is None else self.members

    def sent(self, population: Population) -> float:
        return self.members / population.devices

    def alone_of_sent(self, population: Population) -> float:
        """Return Pr[a device that sends has no honest surviving neighbour].

        Its neighbours are any k of the N - 1 others, and none of the h - 1 other honest survivors
        is among them with the probability C(N - 1 - k, h - 1) / C(N - 1, h - 1).
        """
        others = population.devices - 1
        survivors, weight = population.seen_by_survivors()
        away = log_binomial(others - self._neighbours, survivors - 1)
        return float(weight @ np.exp(away - log_binomial(others, survivors - 1)))

    def sole(self, population: Population) -> float:
        """Return Pr[a cohort has one honest survivor]."""
        survivors, probability = population.honest_survivors()
        one = hypergeometric(population.devices, survivors, self.members, 1)
        return float(probability @ one)

    @property
    def _neighbours(self) -> int:
        return self.members - 1 if self.degree is None else self.degree

    def draw(self, honest: Flags, generator: np.random.Generator) -> Drawn:
        # Only honest survivors that follow each other are linked. A survivor's neighbours on one
        # side are the next k / 2 places; whoever is there is linked through those in between, so
        # the components are those of the whole graph.
        samples, devices = honest.shape
        order = random_orders(samples, devices, generator)[:, : self.members]
        sends = np.zeros_like(honest)
        np.put_along_axis(sends, order, True, axis=1)
        row, place = np.nonzero(np.take_along_axis(honest, order, axis=1))
        vertex = row * devices + order[row, place]
        count = np.bincount(row, minlength=samples)
        following = np.arange(1, row.size + 1)
        ends = np.cumsum(count)
        following[ends[count > 0] - 1] = (ends - count)[count > 0]  # the first follows the last
        distance = (place[following] - place) % self.members
        everybody = self._neighbours >= self.members - 1
        linked = distance <= (self.members if everybody else self._neighbours // 2)
        return sends, vertex[linked], vertex[following[linked]]


@dataclass(frozen=True)
class OnlySummed(InCohorts):
    """Each device sends all coordinates under its own mask; only the sum of all becomes known."""

    words = "of each device, or shares of its vector, of which the sum alone is told"


@dataclass(frozen=True)
class UnderOneKey(OnlySummed):
    """Only the sum becomes known without collusion; one colluding device opens every value."""

    def against(self, population: Population) -> Masking:
        return InTheClear() if population.colluding else self


@dataclass(frozen=True)
class BySelection(Masking):
    """SparseSecAgg: each pair of neighbours selects and masks a coordinate at random.

    The probability is pi = alpha / k (eq. 13) with k neighbours per device; x = 1 - pi below.
    """

    devices: int
    alpha: float
    degree: int | None = None

    @property
    def _neighbours(self) -> int:
        return self.devices - 1 if self.degree is None else self.degree

    @property
    def _log_x(self) -> float:
        probability = self.alpha / self._neighbours
        # Only one pair that always selects has x = 0; this stands for its logarithm.
        return math.log1p(-probability) if probability < 1 else -1e9

    def sent(self, population: Population) -> float:
        """Return 1 - x**k: a device sends what any of its k pairs selects (eq. 14)."""
        return -math.expm1(self._neighbours * self._log_x)

    def alone_of_sent(self, population: Population) -> float:
        """Return Pr[an honest survivor sends a coordinate, and alone] over Pr[it sends it].

        With g honest surviving partners: none of the g pairs with them selects the coordinate, but
        one of the k - g others does, x**g (1 - x**(k - g)). If all devices are partners, g = h - 1;
        if the k partners are at random, g is hypergeometric.
        """
        survivors, weight = population.seen_by_survivors()
        k = self._neighbours
        if k == self.devices - 1:
            chances = self._alone_beside(survivors - 1)
        else:
            g = np.arange(k + 1)
            likely = hypergeometric(self.devices - 1, survivors[:, np.newaxis] - 1, k, g)
            chances = likely @ self._alone_beside(g)
        return float(weight @ chances) / self.sent(population)

    def _alone_beside(self, partners: Counts) -> Floats:
        silent = np.exp(partners * self._log_x)
        return silent * -np.expm1((self._neighbours - partners) * self._log_x)

    def sole(self, population: Population) -> float | None:
        """Return the mean over h of h x**(C(h, 2) + (h - 1)(N - h)) (1 - x**(N - h)).

        For each of the h: no pair of honest survivors and no pair of the h - 1 others with the
        N - h other devices selects the coordinate, and one of its own with those does.
        """
        if self._neighbours < self.devices - 1:
            return None
        h, probability = population.honest_survivors()
        outside = self.devices - h
        silent = h * (h - 1) // 2 + (h - 1) * outside
        chances = h * np.exp(silent * self._log_x) * -np.expm1(outside * self._log_x)
        return float(probability[h > 0] @ chances[h > 0])

    def draw(self, honest: Flags, generator: np.random.Generator) -> Drawn:
        samples, devices = honest.shape
        pairs = devices * self._neighbours // 2
        chance = self.alpha / self._neighbours
        selected = generator.binomial(samples * pairs, min(1.0, chance))
        found = generator.choice(samples * pairs, selected, replace=False, shuffle=False)
        sample, pair = np.divmod(found, pairs)
        if self._neighbours == devices - 1:
            # Device j has pairs with the j devices before it, numbered from j (j - 1) / 2.
            starts = np.arange(devices) * np.arange(-1, devices - 1) // 2
            right = np.searchsorted(starts, pair, side="right") - 1
            left = pair - starts[right]
        else:
            place, distance = np.divmod(pair, self._neighbours // 2)
            order = random_orders(samples, devices, generator)
            left = order[sample, place]
            right = order[sample, (place + distance + 1) % devices]
        sends = np.zeros_like(honest)
        sends[sample, left] = True
        sends[sample, right] = True
        return sends, sample * devices + left, sample * devices + right


def random_orders(samples: int, devices: int, generator: np.random.Generator) -> Counts:
    """Draw an order of the devices for each sample, shape (samples, N)."""
    return generator.permuted(np.broadcast_to(np.arange(devices), (samples, devices)), axis=1)


def largest_degree(devices: int) -> int:
    """Return the largest number of neighbours to ask for, which links all: an even one."""
    return max(2, devices // 2 * 2)


def ring_degree(degree: int | None, devices: int, members: int | None = None) -> int | None:
    """Return a number of neighbours as kinds of masking take it: None where all are neighbours.

    UsageError if no ring has it. The `members` of a cohort are fewer than all `devices`.
    """
    if degree is None:
        return None
    if degree > largest_degree(devices) or (degree % 2 and degree != devices - 1):
        raise UsageError(
            f"the degree is {degree}; for {devices} devices on a ring it must be an even number, "
            f"at most {largest_degree(devices)}"
        )
    return None if degree >= (members or devices) - 1 else degree
