"""Coordinates that all devices send in a round, a fraction alpha of them, and others in the next.

They are drawn by systematic sampling (W. G. Madow and L. H. Madow, "On the theory of systematic
sampling", 1944): from a random start on, in steps of the golden section of d, so that they are
spread evenly over the vector (see the module `cohort`). The start follows from the run's seed and
the round, and all know it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import SPARSIFICATION
from hpcfl.algorithms.aggregation.cohort import Segments
from hpcfl.algorithms.parameters import Parameters


def count(parameters: Parameters) -> int:
    """Return the number of coordinates, at least one."""
    return max(1, round(parameters.alpha * parameters.dim))


def of_round(parameters: Parameters, round_index: int) -> NDArray[np.int64]:
    """Return the coordinates of a round, shape (count,)."""
    seeds = np.random.SeedSequence(parameters.seed, spawn_key=(SPARSIFICATION, round_index))
    start = int(np.random.default_rng(seeds).integers(parameters.dim))
    return Segments(parameters.dim, 1, 1).dealt(start, count(parameters))
