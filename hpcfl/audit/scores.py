"""What the observer makes of a release: log-likelihood ratios, large if the canary is there."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcfl.audit.instance import Instance
from hpcfl.rounds.dropouts import DropoutSchedule

Floats = NDArray[np.float64]

COORDINATES = [0, 2]
"""Of the model: the two classes' weights of the canary's feature."""


def ratio(
    instance: Instance, seen: Floats, length: float, noise: float, chance: float, replaced: bool
) -> float:
    """Return the log-likelihood ratio of the canary's coordinates, seen with noise.

    See `Stage.ratio`; if the canary is `replaced`, its neighbour has the opposite, not nothing.
    """
    values = seen[COORDINATES]
    laplace = instance.mechanism == "laplace"
    shift = length * np.array([-1.0, 1.0]) / (2.0 if laplace else math.sqrt(2.0))

    def log_density(mean: Floats) -> float:
        away = (values - mean) / noise
        return -float(np.abs(away).sum() if laplace else (away**2).sum() / 2)

    def log_mixture(mean: Floats) -> float:
        there = log_density(mean)
        if chance >= 1:
            return there
        absent = log_density(np.zeros(2))
        return float(np.logaddexp(math.log1p(-chance) + absent, math.log(chance) + there))

    return log_mixture(shift) - log_mixture(-shift if replaced else np.zeros(2))


def crowd_ratio(instance: Instance, seen: Floats) -> float:
    """Return the log-likelihood ratio of a sum in which all others oppose the canary.

    With the canary it is one more who drops out, or as many; among them is the canary, or not.
    """
    others = instance.devices - 1
    along = (seen[COORDINATES[1]] - seen[COORDINATES[0]]) / math.sqrt(2)

    def log_density(sum_: float) -> float:
        return -(((along - sum_) / instance.sigma) ** 2) / 2

    def dropped(devices: int) -> int:
        schedule = DropoutSchedule(devices, instance.dropout, "exact", "upload", 0)
        return len(schedule.draw(0))

    there = log_density(1.0 - (others - dropped(others + 1)))
    gone = dropped(others + 1) / (others + 1)
    if gone:
        absent = log_density(-float(others - dropped(others + 1) + 1))
        there = float(np.logaddexp(math.log1p(-gone) + there, math.log(gone) + absent))
    return there - log_density(-float(others - dropped(others)))
