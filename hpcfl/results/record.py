"""What one round cost: the unit that is measured, stored and summarised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.results import schema


@dataclass
class RoundRecord:
    """Everything that is measured in one round of one protocol.

    ``P`` is the number of phases, ``N`` the number of devices.

    Attributes
    ----------
    bytes_up, bytes_down, messages_up, messages_down : ndarray of uint64, shape (P, N)
        What each device sent and received, counted on the serialised messages.
    wall_seconds : ndarray of float64, shape (P, N + 1)
        Elapsed time of the phase on the rank that holds the device; the server is last.
    cpu_seconds : ndarray of float64, shape (P, N + 1)
        CPU time of the protocol's own work for the device, without the MPI library; the server
        is last.
    round_seconds : float
        Elapsed time of the whole round, the slowest rank's.
    survived : ndarray of bool, shape (N,)
        Whether the device's vector is part of the aggregate.
    validated : bool
        Whether the decoded aggregate equals the sum obtained on the independent path.
    warmup : bool
        Whether the round was run only to warm up, and stays out of summaries.
    promise_failure : float
        At most how likely it is that something that was promised does not hold of this round,
        recomputed from what happened in it; NaN where nothing is promised.
    lost_phase : ndarray of int16, shape (N,)
        Phase in which the device's rank was found dead, P for outside of all phases, and -1 for a
        rank that was alive, or dead before. What a device of such a rank spent in the round nobody
        knows: it counts as nothing.
    detect_seconds, recover_seconds : float
        How long it took to find ranks dead, and to go on without them, all failures of the round
        together; NaN without any.
    """

    bytes_up: NDArray[np.uint64]
    bytes_down: NDArray[np.uint64]
    messages_up: NDArray[np.uint64]
    messages_down: NDArray[np.uint64]
    wall_seconds: NDArray[np.float64]
    cpu_seconds: NDArray[np.float64]
    round_seconds: float
    survived: NDArray[np.bool_]
    validated: bool
    warmup: bool
    promise_failure: float = math.nan
    lost_phase: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    detect_seconds: float = math.nan
    recover_seconds: float = math.nan

    @classmethod
    def empty(cls, phases: int, devices: int) -> RoundRecord:
        """Return a record of zeros, to be filled during a round."""
        values: dict[str, Any] = {}
        for dataset in (*schema.DATASETS, *schema.FAILURES):
            shape = dataset.shape(phases, devices)
            value: NDArray[Any] = np.full(shape, dataset.unknown or 0, dataset.dtype)
            values[dataset.name] = value if shape else value.item()
        return cls(**values)
