"""Which devices take part in a round of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcfl.algorithms.aggregation.base import SAMPLING
from hpcfl.errors import UsageError

MODES = ("exact", "poisson")


@dataclass(frozen=True)
class DeviceSampling:
    """Draws the devices of a round; the same on every rank.

    Attributes
    ----------
    devices : int
        Number n of devices.
    per_round : int
        Number r of devices in a round, exactly or on average.
    mode : str
        ``"exact"``: r devices; ``"poisson"``: each with probability r / n.
    seed : int
        Seed of the run.
    """

    devices: int
    per_round: int
    mode: str
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.per_round <= self.devices:
            raise UsageError(
                f"{self.per_round} devices a round are asked for; there are {self.devices}"
            )

    def draw(self, round_index: int) -> list[int]:
        """Return the ids of the devices that take part, in increasing order."""
        if self.per_round == self.devices:
            return list(range(self.devices))
        seeds = np.random.SeedSequence(self.seed, spawn_key=(SAMPLING, round_index))
        generator = np.random.default_rng(seeds)
        if self.mode == "exact":
            chosen = generator.permutation(self.devices)[: self.per_round]
        else:
            probability = self.per_round / self.devices
            chosen = np.flatnonzero(generator.random(self.devices) < probability)
        return sorted(chosen.tolist())
