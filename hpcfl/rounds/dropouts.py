"""Which devices disappear in a round, and when."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hpcfl.algorithms.aggregation.base import DROPOUTS


@dataclass(frozen=True)
class DropoutSchedule:
    """Draws the devices that disappear; the same on every rank."""

    devices: int
    rate: float  # theta
    model: str  # "exact": floor(theta N) devices a round; "bernoulli": each with probability theta
    phase: str  # before which they disappear: they send and receive nothing from then on
    seed: int  # of the run

    def draw(self, round_index: int) -> dict[int, str]:
        """Return the phase before which each device disappears."""
        seeds = np.random.SeedSequence(self.seed, spawn_key=(DROPOUTS, round_index))
        generator = np.random.default_rng(seeds)
        if self.model == "exact":
            # The rate as it was written: 0.29 * 100 is below 29 in binary floating point.
            count = int(Fraction(repr(self.rate)) * self.devices)
            ids = generator.permutation(self.devices)[:count]
        else:
            ids = np.flatnonzero(generator.random(self.devices) < self.rate)
        return dict.fromkeys(sorted(ids.tolist()), self.phase)
