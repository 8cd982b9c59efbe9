"""The record of one round's costs, which is measured, stored and summarised.

The fields of `RoundRecord` are the datasets of the rounds in a results file. Only this module
defines their shapes, units and meanings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.report import formats
from hpcfl.values import dataclass, field, fields

Counts = NDArray[np.uint64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Phases = NDArray[np.int16]
_TYPES: dict[str, type] = {
    "Counts": np.uint64,
    "Floats": np.float64,
    "Flags": np.bool_,
    "Phases": np.int16,
    "float": np.float64,
    "bool": np.bool_,
}
NOT_LOST = -1
# Values of `StoredDataset.of` for the datasets that not all runs have.
FAILURES, RANK_TIMES, HELPERS, COMMITTEE = "failures", "rank times", "helpers", "committee"
POPULATION = "population"
# Why a device was late for an exchange; `late_reason` holds the index.
LATE_REASONS = ("link", "compute", "away")
LINK, COMPUTE, AWAY = range(len(LATE_REASONS))
_DEVICE, _PARTY = ("phase", "device"), ("phase", "device or server")
_RANK, _HELPER = ("phase", "rank"), ("phase", "helper")


def _always(unit: str, about: str, *axes: str) -> Any:
    """Return a field whose dataset is in every file."""
    return field(metadata={"unit": unit, "about": about, "axes": axes, "of": "", "unknown": None})


def _of(of: str, unit: str, about: str, *axes: str, unknown: float = math.nan) -> Any:
    """Return a field whose dataset is in some files; `unknown` stands for missing values."""
    about_it = {"unit": unit, "about": about, "axes": axes, "of": of, "unknown": unknown}
    if not axes:
        return field(default=unknown, metadata=about_it)
    return field(default_factory=lambda: np.empty((0,) * len(axes)), metadata=about_it)


@dataclass(repr=False)
class RoundRecord:
    """Everything that is measured in one round of one protocol.

    In arrays of P x (N + 1) values, the server's are last. Bytes and messages are counted on the
    serialised messages. If a rank is lost, the costs of its devices in that round count as 0.
    """

    bytes_up: Counts = _always("bytes", "what the device sent, envelopes included", *_DEVICE)
    bytes_down: Counts = _always("bytes", "what it received, envelopes included", *_DEVICE)
    messages_up: Counts = _always("1", "messages that it sent", *_DEVICE)
    messages_down: Counts = _always("1", "messages that it received", *_DEVICE)
    wall_seconds: Floats = _always("s", "elapsed time of its part of the phase", *_PARTY)
    cpu_seconds: Floats = _always(
        "s", "CPU time of its part of the phase, without the MPI library", *_PARTY
    )
    round_seconds: float = _always("s", "elapsed time of the round, on the slowest rank")
    survived: Flags = _always("1", "whether the device's vector is in the sum", "device")
    validated: bool = _always("1", "whether the sum equals the independently computed sum")
    warmup: bool = _always("1", "whether the round belongs to the warm-up")
    promise_failure: float = _of(
        *("", "1"),
        "at most how likely it is that something that was promised does not hold of the round, "
        "recomputed from who was there; NaN where nothing is promised",
    )
    lost_phase: Phases = _of(
        *(FAILURES, "1"),
        "phase, its index in `/phases`, in which the device's rank was found dead; the number of "
        "phases for outside of all; -1 if it was alive, or dead before",
        "device",
        unknown=NOT_LOST,
    )
    detect_seconds: float = _of(FAILURES, "s", "how long it took to find ranks dead")
    recover_seconds: float = _of(FAILURES, "s", "how long it took to continue without them")
    begin_seconds: Floats = _of(
        *(RANK_TIMES, "s"),
        "when the rank began the phase, since the first one began the round, by the server's clock",
        *_RANK,
    )
    end_seconds: Floats = _of(RANK_TIMES, "s", "when it ended the phase, likewise", *_RANK)
    computing_seconds: Floats = _of(RANK_TIMES, "s", "what it computed in the phase", *_RANK)
    mpi_seconds: Floats = _of(RANK_TIMES, "s", "what it spent in MPI, without waiting", *_RANK)
    waiting_seconds: Floats = _of(RANK_TIMES, "s", "what it waited for others", *_RANK)
    skew_seconds: float = _of(
        RANK_TIMES,
        "s",
        "between the first and the last rank that left the barrier before the round",
    )
    clock_offset_seconds: Floats = _of(
        RANK_TIMES, "s", "what was added to the rank's clock", "rank"
    )
    clock_uncertainty_seconds: float = _of(RANK_TIMES, "s", "largest uncertainty of these offsets")
    resident_bytes: Floats = _of(
        RANK_TIMES, "bytes", "memory of the rank's process when the round began", "rank"
    )
    peak_bytes: Floats = _of(
        *(RANK_TIMES, "bytes"),
        "its peak in the round; pages that processes share count for each",
        "rank",
    )
    event_seconds: Floats = _of(
        *(POPULATION, "s", "modelled time of the phase, by the event clock", "phase"),
    )
    late_phase: Phases = _of(
        *(POPULATION, "1", "phase for which the device was late or away; -1 if it was not"),
        "device",
        unknown=NOT_LOST,
    )
    late_reason: Phases = _of(
        *(POPULATION, "1", f"why, its index among {', '.join(LATE_REASONS)}; -1 if it was not"),
        "device",
        unknown=NOT_LOST,
    )
    in_committee: Flags = _of(
        COMMITTEE, "1", "whether the device is in the committee of the round", "device", unknown=0
    )
    helper_bytes_up: Counts = _of(HELPERS, "bytes", "what it sent", *_HELPER, unknown=0)
    helper_bytes_down: Counts = _of(HELPERS, "bytes", "what it received", *_HELPER, unknown=0)
    helper_messages_up: Counts = _of(HELPERS, "1", "messages it sent", *_HELPER, unknown=0)
    helper_messages_down: Counts = _of(HELPERS, "1", "messages it received", *_HELPER, unknown=0)
    helper_wall_seconds: Floats = _of(HELPERS, "s", "elapsed time of it", *_HELPER, unknown=0)
    helper_cpu_seconds: Floats = _of(HELPERS, "s", "CPU time of it", *_HELPER, unknown=0)

    @property
    def words(self) -> list[str]:
        """Size and outcome of the round, in a few words."""
        phases, devices = self.bytes_up.shape
        return [
            f"{phases} phases",
            f"N={devices}",
            f"{int(self.survived.sum())} in the sum",
            formats.time(self.round_seconds),
            "validated" if self.validated else "not validated",
        ]

    @classmethod
    def empty(cls, phases: int, devices: int, helpers: int = 0) -> RoundRecord:
        """Return a record to be filled during a round, with zeros or the values for unknown."""
        values: dict[str, Any] = {}
        for dataset in KNOWN:
            shape = dataset.shape(sizes(phases, devices, helpers=helpers))
            value: NDArray[Any] = np.full(shape, dataset.unknown or 0, dataset.dtype)
            values[dataset.name] = value if shape else value.item()
        return cls(**values)


@dataclass(frozen=True)
class StoredDataset:
    """A dataset of a results file, with one entry per round."""

    name: str
    dtype: type
    axes: tuple[str, ...] = ()  # labels of the axes after the first, which is the round
    unit: str = ""  # ``bytes``, ``s``, ``1`` if dimensionless, or "" if the name tells the unit
    about: str = ""  # its meaning
    of: str = ""  # which runs have it, "" for all
    # The value for rounds that were measured without it; None if all files have it.
    unknown: float | None = None

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of one entry."""
        return tuple(sizes[label] for label in self.axes)


KNOWN = tuple(
    StoredDataset(one.name, _TYPES[str(one.type)], **one.metadata) for one in fields(RoundRecord)
)
# Datasets of the costs of each phase: of devices and the server, and of helpers.
SPENT = tuple(one.name for one in KNOWN if one.of == "" and "phase" in one.axes)
SPENT_BY_HELPERS = tuple(one.name for one in KNOWN if one.of == HELPERS)


def sizes(phases: int, devices: int, ranks: int = 0, helpers: int = 0) -> dict[str, int]:
    """Return the length of each axis by its label."""
    known = {"phase": phases, "device": devices, "device or server": devices + 1}
    return known | {"rank": ranks, "helper": helpers}
