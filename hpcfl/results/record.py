"""What one round cost: the unit that is measured, stored and summarised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.report import brief, formats
from hpcfl.results import schema


def _no_ranks() -> NDArray[np.float64]:
    return np.empty((0, 0))


def _no_helpers() -> NDArray[np.uint64]:
    return np.empty((0, 0), np.uint64)


@dataclass(repr=False)
class RoundRecord:
    """Everything that is measured in one round of one protocol.

    The shapes are those of :mod:`hpcfl.results.schema` for P phases and N devices; of P x (N + 1)
    values the server's are last. Bytes and messages are counted on the serialised messages.
    """

    bytes_up: NDArray[np.uint64]
    bytes_down: NDArray[np.uint64]
    messages_up: NDArray[np.uint64]
    messages_down: NDArray[np.uint64]
    wall_seconds: NDArray[np.float64]  # elapsed, on the rank that holds the device
    cpu_seconds: NDArray[np.float64]  # the protocol's own work, without the MPI library
    round_seconds: float  # elapsed, the slowest rank's
    survived: NDArray[np.bool_]  # whether the device's vector is part of the aggregate
    validated: bool  # whether the aggregate equals the sum obtained on the independent path
    warmup: bool  # stays out of summaries
    # At most how likely it is that something that was promised does not hold of this round,
    # recomputed from what happened in it; NaN where nothing is promised.
    promise_failure: float = math.nan
    # Phase in which the device's rank was found dead, P for outside of all phases, and -1 for a
    # rank that was alive, or dead before. What a device of such a rank spent in the round nobody
    # knows: it counts as nothing.
    lost_phase: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    # To find ranks dead, and to go on without them, all failures of the round together; NaN
    # without any.
    detect_seconds: float = math.nan
    recover_seconds: float = math.nan

    # Of every phase and rank, shape (P, ranks): when it began and ended after the first rank began
    # the round, on the server's clock, and how long the rank computed, was in MPI, and waited for
    # others. Empty where it is not known.
    begin_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)
    end_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)
    computing_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)
    mpi_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)
    waiting_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)
    # Between the first and the last rank that left the barrier before the round.
    skew_seconds: float = math.nan
    # What was added to each rank's clock to have the server's, and by how much it may be off.
    clock_offset_seconds: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    clock_uncertainty_seconds: float = math.nan
    # Resident memory of each rank, shape (ranks,): when the round began, and its peak in the round.
    resident_bytes: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    peak_bytes: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    # Whether the device was in the committee of the round, shape (N,); empty where it is not known.
    in_committee: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    # What the same is for each of K helpers, shape (P, K).
    helper_bytes_up: NDArray[np.uint64] = field(default_factory=_no_helpers)
    helper_bytes_down: NDArray[np.uint64] = field(default_factory=_no_helpers)
    helper_messages_up: NDArray[np.uint64] = field(default_factory=_no_helpers)
    helper_messages_down: NDArray[np.uint64] = field(default_factory=_no_helpers)
    helper_wall_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)
    helper_cpu_seconds: NDArray[np.float64] = field(default_factory=_no_ranks)

    @property
    def words(self) -> list[str]:
        """What it is, and how it went, in a few words."""
        phases, devices = self.bytes_up.shape
        return [
            f"{phases} phases",
            f"N={devices}",
            f"{int(self.survived.sum())} in the sum",
            formats.time(self.round_seconds),
            "validated" if self.validated else "not validated",
            *(["warm-up"] if self.warmup else []),
        ]

    def __repr__(self) -> str:
        return brief.line("RoundRecord", *self.words)

    @classmethod
    def empty(cls, phases: int, devices: int, helpers: int = 0) -> RoundRecord:
        """Return a record of zeros, to be filled during a round."""
        values: dict[str, Any] = {}
        for dataset in schema.KNOWN:
            shape = dataset.shape(phases, devices, helpers=helpers)
            value: NDArray[Any] = np.full(shape, dataset.unknown or 0, dataset.dtype)
            values[dataset.name] = value if shape else value.item()
        return cls(**values)
