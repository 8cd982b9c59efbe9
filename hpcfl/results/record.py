"""What one round cost: the unit that is measured, stored and summarised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.report import brief, formats
from hpcfl.results import schema

Counts = NDArray[np.uint64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def _unknown() -> Floats:
    return np.empty((0, 0))


def _uncounted() -> Counts:
    return np.empty((0, 0), np.uint64)


@dataclass(repr=False)
class RoundRecord:
    """Everything that is measured in one round of one protocol.

    Shapes and what each figure is are those of :mod:`hpcfl.results.schema`; of P x (N + 1) values
    the server's are last. Bytes and messages are counted on the serialised messages.
    """

    bytes_up: Counts
    bytes_down: Counts
    messages_up: Counts
    messages_down: Counts
    wall_seconds: Floats  # elapsed, on the rank that holds the device
    cpu_seconds: Floats  # the protocol's own work, without the MPI library
    round_seconds: float  # elapsed, the slowest rank's
    survived: Flags  # whether the device's vector is part of the aggregate
    validated: bool  # whether the aggregate equals the sum obtained on the independent path
    warmup: bool  # stays out of summaries
    promise_failure: float = math.nan
    # What a device of a rank that was lost spent in the round nobody knows: it counts as nothing.
    lost_phase: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    # Of all failures of the round together.
    detect_seconds: float = math.nan
    recover_seconds: float = math.nan
    begin_seconds: Floats = field(default_factory=_unknown)
    end_seconds: Floats = field(default_factory=_unknown)
    computing_seconds: Floats = field(default_factory=_unknown)
    mpi_seconds: Floats = field(default_factory=_unknown)
    waiting_seconds: Floats = field(default_factory=_unknown)
    skew_seconds: float = math.nan
    clock_offset_seconds: Floats = field(default_factory=lambda: np.empty(0))
    clock_uncertainty_seconds: float = math.nan
    resident_bytes: Floats = field(default_factory=lambda: np.empty(0))
    peak_bytes: Floats = field(default_factory=lambda: np.empty(0))
    in_committee: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    helper_bytes_up: Counts = field(default_factory=_uncounted)
    helper_bytes_down: Counts = field(default_factory=_uncounted)
    helper_messages_up: Counts = field(default_factory=_uncounted)
    helper_messages_down: Counts = field(default_factory=_uncounted)
    helper_wall_seconds: Floats = field(default_factory=_unknown)
    helper_cpu_seconds: Floats = field(default_factory=_unknown)

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
            shape = dataset.shape(schema.sizes(phases, devices, helpers=helpers))
            value: NDArray[Any] = np.full(shape, dataset.unknown or 0, dataset.dtype)
            values[dataset.name] = value if shape else value.item()
        return cls(**values)
