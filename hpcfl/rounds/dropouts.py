"""Which devices and helpers disappear in a round, and when."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hpcfl.algorithms.aggregation.base import DROPOUTS, HELPER_DROPOUTS


@dataclass(frozen=True)
class DropoutSchedule:
    """Draws the devices and helpers that disappear; the same on every rank."""

    devices: int
    rate: float  # theta
    model: str  # "exact": floor(theta N) devices a round; "bernoulli": each with probability theta
    phase: str  # before which they disappear: they send and receive nothing from then on
    seed: int  # of the run
    upload: str = ""  # the phase before which helpers do, if any do
    helpers: int = 0  # K
    helpers_dropping: int = 0  # how many of them in each round

    def draw(self, round_index: int) -> dict[int, str]:
        """Return the phase before which each device or helper (ids from N on) disappears."""
        generator = self._generator(DROPOUTS, round_index)
        if self.model == "exact":
            # The rate as it was written: 0.29 * 100 is below 29 in binary floating point.
            count = int(Fraction(repr(self.rate)) * self.devices)
            ids = generator.permutation(self.devices)[:count]
        else:
            ids = np.flatnonzero(generator.random(self.devices) < self.rate)
        return dict.fromkeys(sorted(ids.tolist()), self.phase) | self._helpers(round_index)

    def _helpers(self, round_index: int) -> dict[int, str]:
        if not self.helpers_dropping:
            return {}
        numbers = self._generator(HELPER_DROPOUTS, round_index).permutation(self.helpers)
        gone = self.devices + numbers[: self.helpers_dropping]
        return dict.fromkeys(sorted(gone.tolist()), self.upload)

    def _generator(self, purpose: int, round_index: int) -> np.random.Generator:
        seeds = np.random.SeedSequence(self.seed, spawn_key=(purpose, round_index))
        return np.random.default_rng(seeds)
