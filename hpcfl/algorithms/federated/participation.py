"""Which devices take part in a round of training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import SAMPLING
from hpcfl.errors import UsageError
from hpcfl.values import dataclass, field


@dataclass(frozen=True)
class Participation:
    """Draws the devices of a round, identically on every rank.

    The mode ``"exact"`` draws r devices anew for each round; ``"poisson"`` draws each device with
    probability r / n; ``"balanced"`` takes r devices in turn, in a repeated random order, so that
    the numbers of rounds of any two devices differ by at most one at any time.
    """

    devices: int  # number n of devices
    per_round: int  # number r of devices in a round, exactly or on average
    mode: str
    seed: int
    # Item t: how often each device took part before round t; computed on demand.
    _before: list[NDArray[np.int64]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not 1 <= self.per_round <= self.devices:
            raise UsageError(
                f"{self.per_round} devices a round are asked for; there are {self.devices}"
            )

    def draw(self, round_index: int) -> list[int]:
        """Return the ids of the devices that take part, in increasing order."""
        if self.per_round == self.devices:
            return list(range(self.devices))
        if self.mode == "balanced":
            order = self._generator(0).permutation(self.devices)
            first = round_index * self.per_round
            chosen = order[np.arange(first, first + self.per_round) % self.devices]
        elif self.mode == "exact":
            chosen = self._generator(round_index).permutation(self.devices)[: self.per_round]
        else:
            probability = self.per_round / self.devices
            chosen = np.flatnonzero(self._generator(round_index).random(self.devices) < probability)
        return sorted(chosen.tolist())

    def before(self, round_index: int) -> NDArray[np.int64]:
        """Return the number of rounds before this one that each device takes part in; (n,)."""
        known = self._before
        if not known:
            known.append(np.zeros(self.devices, np.int64))
        for earlier in range(len(known) - 1, round_index):
            counts = known[earlier].copy()
            counts[self.draw(earlier)] += 1
            known.append(counts)
        return known[round_index]

    def most_before(self, round_index: int) -> int:
        """Return the maximum over all devices of the rounds that they take part in before this one.

        If all devices are in every round, or take turns, nothing is drawn: there may be millions.
        """
        if self.mode == "balanced" or self.per_round == self.devices:
            return -(-round_index * self.per_round // self.devices)
        return int(self.before(round_index).max())

    def _generator(self, round_index: int) -> np.random.Generator:
        seeds = np.random.SeedSequence(self.seed, spawn_key=(SAMPLING, round_index))
        return np.random.default_rng(seeds)
