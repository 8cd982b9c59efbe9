"""LOCKS with one thing changed each, for Figure 1; none of them is for use.

All are of the variant with a trusted server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import Aggregate
from hpcfl.algorithms.federated.base import Vector
from hpcfl.algorithms.federated.locks import Locks

Floats = NDArray[np.float64]


class FreeNorms(Locks):
    """The server learns the sum of norms without noise, and nothing is charged for it.

    Its epsilon is that of the updates alone, so that it is not private at that epsilon: it says
    what the norms' part of the budget costs.
    """

    name = "locks-free-norms"

    def account_settings(
        self, rounds: int, sigma: float, survivors: Sequence[int] = ()
    ) -> dict[str, Any]:
        return super().account_settings(rounds, sigma, survivors) | {"sigma_norms": math.inf}

    @property
    def sigma_norms(self) -> float:
        return 1e-9 * self.privacy.clip_norm


class EvenChances(Locks):
    """Stage 2 keeps each of the invited with the same probability, whatever its norm."""

    name = "locks-even-chances"

    def chances(self, norms: Floats, total: float) -> Floats:
        return np.full(norms.size, min(1.0, self.kept / max(1, norms.size)))

    def divisors(self, chances: Floats, total: float) -> tuple[Floats, float]:
        return chances, self.privacy.clip_norm / float(chances.min(initial=1.0))


class Unweighted(Locks):
    """Updates are summed as they are and divided by b: the paper's line 21, as it is printed.

    Users with larger norms are heard more often, which nothing makes up for: the mean is biased.
    """

    name = "locks-unweighted"
    power = 1.0  # of the norms, to which chances are proportional

    def chances(self, norms: Floats, total: float) -> Floats:
        if self.power == 1:
            return super().chances(norms, total)
        weights = norms**self.power
        return np.minimum(1.0, self.kept * weights / max(float(weights.sum()), 1e-300))

    def divisors(self, chances: Floats, total: float) -> tuple[Floats, float]:
        return np.ones(chances.size), self.privacy.clip_norm

    def update(
        self, aggregate: Aggregate, state: Vector, participants: list[int], round_index: int
    ) -> Floats:
        mean = super().update(aggregate, state, participants, round_index)
        return mean * (self.federation.participation.per_round / self.kept)


class Largest(Unweighted):
    """The same, with the fourth power of the norms: the highest come first.

    Its chances come from exact norms, whatever the noise.
    """

    name = "locks-largest"
    power = 4.0


class UnweightedFreeNorms(Unweighted, FreeNorms):
    """Both changes at once."""

    name = "locks-unweighted-free-norms"
