"""What a results file holds: every group, dataset and attribute, named once.

A file is HDF5. Its root has attributes that say what the run was; options and environment are
attributes of groups; everything that is measured is a dataset whose first axis is the round.
Writer, reader and the page of the documentation go by the tables of this module.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np

from hpcfl.system.outputs import without_home

SCHEMA = "hpcfl/1"

# Attributes of the root. Status and end are written in place when the run ends, so they have a
# fixed length; a time is 2025-01-31T23:59:59Z. From what was asked for a run goes on.
STATUS, FINISHED, ASKED = "status", "finished", "asked"
STATUS_TYPE, TIME_TYPE = "S11", "S20"
HEADER = {
    "schema": "version of the layout of the file",
    "hpcfl_version": "build of hpcfl that wrote it",
    "run_id": "random number of the run, 32 hex digits",
    "protocol": "aggregation protocol",
    "command": "command line that does the same",
    "started": "when the run began, UTC",
    STATUS: "running, complete, failed, or interrupted by a signal",
    FINISHED: "when the run ended, UTC; empty before",
    ASKED: "what was asked for, as JSON",
}
# Text that is found out when a launch ends.
WORD_TYPE = "S16"

# Groups and datasets of the root.
CONFIG, ENVIRONMENT, RESUMED = "config", "environment", "resumed"
PHASES, ROUNDS, TRAINING, PARTITION = "phases", "rounds", "training", "partition"
# Of a launch that went on with a run: the number of rounds that were finished before.
FIRST_ROUND = "first_round"
# Of what is found out when a launch ends, this is the run's: the others describe the machine.
OF_THE_RUN = {"stop_reason"}
# Of the environment: where every rank was, its host, hardware threads and devices.
PLACEMENT = "placement"
# The checkpoint of a training run is beside its results file, with this in place of the ending.
CHECKPOINT_SUFFIX = ".checkpoint.npz"
# Of the configuration: what of the published data was not there, where some was missing.
INCOMPLETE = "incomplete_data"
# How a value that there is not is stored.
NONE = "none"
NOT_LOST = -1


@dataclass(frozen=True)
class StoredDataset:
    """A dataset of the rounds; one round of it is the field of `RoundRecord` with its name."""

    name: str
    dtype: type
    axes: tuple[str, ...]  # labels of those after the first, the round
    unit: str  # ``bytes``, ``s``, ``1`` for what has none, or "" for what its name says
    about: str = ""  # what it is
    # What stands for rounds that were measured without it. None where all files have it.
    unknown: float | None = None

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of one round of it."""
        return tuple(sizes[label] for label in self.axes)


def sizes(phases: int, devices: int, ranks: int = 0, helpers: int = 0) -> dict[str, int]:
    """Return how long each axis is."""
    known = {"phase": phases, "device": devices, "device or server": devices + 1}
    return known | {"rank": ranks, "helper": helpers}


def _stored(
    dtype: type, unit: str, *axes: str, unknown: float | None = None, **about: str
) -> tuple[StoredDataset, ...]:
    return tuple(
        StoredDataset(name, dtype, axes, unit, text, unknown) for name, text in about.items()
    )


DATASETS = (
    *_stored(
        *(np.uint64, "bytes", "phase", "device"),
        bytes_up="what the device sent, envelopes included",
        bytes_down="what it received, envelopes included",
    ),
    *_stored(
        *(np.uint64, "1", "phase", "device"),
        messages_up="messages that it sent",
        messages_down="messages that it received",
    ),
    *_stored(
        *(np.float64, "s", "phase", "device or server"),
        wall_seconds="elapsed time of the device's part of the phase; the server is last",
        cpu_seconds="CPU time of the device's part of the phase; the server is last",
    ),
    *_stored(np.float64, "s", round_seconds="elapsed time of the round, on the slowest rank"),
    *_stored(np.bool_, "1", "device", survived="whether the device's vector is in the sum"),
    *_stored(
        *(np.bool_, "1"),
        validated="whether the sum is right",
        warmup="whether the round is of the warm-up",
    ),
    *_stored(
        *(np.float64, "1"),
        unknown=math.nan,
        promise_failure="at most how likely it is that something that was promised does not hold "
        "of the round, recomputed from who was there; NaN where nothing is promised",
    ),
)
# Only of runs that go on when ranks die.
FAILURES = (
    *_stored(
        *(np.int16, "1", "device"),
        unknown=NOT_LOST,
        lost_phase="phase, its index in `/phases`, in which the device's rank was found dead; the "
        "number of phases for outside of all; -1 if it was alive, or dead before",
    ),
    *_stored(
        *(np.float64, "s"),
        unknown=math.nan,
        detect_seconds="how long it took to find ranks dead; NaN without a loss",
        recover_seconds="how long it took to continue without them; NaN without a loss",
    ),
)
# What ranks did with their time and memory; only of runs of benchmarks. NaN for a rank that died,
# and what is not known of earlier rounds.
RANK_TIMES = (
    *_stored(
        *(np.float64, "s", "phase", "rank"),
        unknown=math.nan,
        begin_seconds="when the rank began the phase, since the first one began the round, by the "
        "server's clock",
        end_seconds="when it ended the phase, likewise",
        computing_seconds="what the rank computed in the phase",
        mpi_seconds="what the rank spent in calls of MPI, waiting left out",
        waiting_seconds="what the rank waited for others",
    ),
    *_stored(
        *(np.float64, "s"),
        unknown=math.nan,
        skew_seconds="between the first and the last rank that left the barrier before the round",
    ),
    *_stored(
        *(np.float64, "s", "rank"),
        unknown=math.nan,
        clock_offset_seconds="what was added to the rank's clock",
    ),
    *_stored(
        *(np.float64, "s"),
        unknown=math.nan,
        clock_uncertainty_seconds="by how much the worst of these may be off",
    ),
    *_stored(
        *(np.float64, "bytes", "rank"),
        unknown=math.nan,
        resident_bytes="resident memory of the rank's process when the round began",
        peak_bytes="its peak in the round; pages that processes share count for each",
    ),
)
# What each phase cost each helper; only of protocols that have helpers.
HELPERS = (
    *_stored(
        *(np.uint64, "bytes", "phase", "helper"),
        unknown=0,
        helper_bytes_up="what the helper sent",
        helper_bytes_down="what it received",
    ),
    *_stored(
        *(np.uint64, "1", "phase", "helper"),
        unknown=0,
        helper_messages_up="messages that it sent",
        helper_messages_down="messages that it received",
    ),
    *_stored(
        *(np.float64, "s", "phase", "helper"),
        unknown=0,
        helper_wall_seconds="elapsed time of the helper's part of the phase",
        helper_cpu_seconds="CPU time of it",
    ),
)
# Which devices were the committee; only of protocols that choose one. A member works for all, and
# its figures are never averaged with those of other devices.
COMMITTEE = _stored(
    *(np.bool_, "1", "device"),
    unknown=0,
    in_committee="whether the device is in the committee of the round",
)
(MARKED,) = _stored(np.bool_, "1", finished="whether the round counts: its data are all there")
KNOWN = (*DATASETS, *FAILURES, *RANK_TIMES, *HELPERS, *COMMITTEE)
# What each phase cost each device, and the server where it takes part.
SPENT = tuple(dataset.name for dataset in DATASETS if "phase" in dataset.axes)
SPENT_BY_HELPERS = tuple(dataset.name for dataset in HELPERS)


def finished(rounds: Any) -> int:
    """Return how many rounds of a file count: those before the first without its mark."""
    return int(np.logical_and.accumulate(rounds[MARKED.name][()]).sum())


class _Described(StrEnum):
    """A name in a file, with what stands there."""

    about: str

    def __new__(cls, name: str, about: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.about = about
        return member


class Metric(_Described):
    """A metric of each round of training, a dataset of the group `TRAINING`."""

    ACCURACY = "accuracy", "on held-out data"
    LOSS = "loss", "on held-out data"
    PARTICIPANTS = "participants", "devices that took part"
    BYTES_UP_TOTAL = "bytes_up_total", "sent by all devices since the start"
    MODELLED_SECONDS = (
        "modelled_seconds",
        "of this round over the modelled link: protocol, and the slowest device's training",
    )
    TRAIN_SECONDS = "train_seconds", "elapsed time of training, all ranks"
    TRAIN_CPU_SECONDS = "train_cpu_seconds", "CPU time of training, of the slowest device"
    EVALUATE_SECONDS = "evaluate_seconds", "elapsed time of the evaluation on held-out data"
    QUANTISATION_ERROR = (
        "quantisation_error",
        "root mean square error that clipping and rounding made in a coordinate of the aggregate; "
        "NaN for protocols that do neither",
    )
    CLIPPED_FRACTION = (
        "clipped_fraction",
        "part of the values sent that were clipped; NaN for protocols that do not clip",
    )
    OVERLAP = (
        "overlap",
        "part of its coordinates that a pair of devices chose both; NaN where none are chosen",
    )
    EPSILON_PAPER = "epsilon_paper", "privacy spent so far, as the algorithm's paper claims"
    EPSILON_PROVEN = (
        "epsilon_proven",
        "privacy spent so far, as is proven for the mechanism as it was run",
    )


class DeviceMetric(_Described):
    """A metric of each round and device, in the group `TRAINING` where it was asked for."""

    DEVICE_LOSS = (
        "device_loss",
        "of the model that the round starts from, on the device's own data; NaN if it did not "
        "train",
    )


def encode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options or facts as attributes hold them.

    Texts, numbers and booleans stay what they are; None becomes ``"none"``, a whole number beyond
    64 bits its digits, and a list, tuple or mapping JSON text. An array of floats stays one.
    """
    return {name: _encoded(value) for name, value in values.items()}


def decode(attributes: Mapping[str, Any], texts: Collection[str] = ()) -> dict[str, Any]:
    """Return options or facts from attributes: the opposite of `encode`.

    None stands for ``"none"``, and for an empty text, which is replaced when a launch ends. JSON
    text of a list or an object becomes a list or a dict, but not in what is named as `texts`. An
    array becomes a list.
    """
    return {
        name: value if name in texts and value not in ("", NONE) else _decoded(value)
        for name, value in attributes.items()
    }


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options or facts as they are read back from a file."""
    return decode(encode(values))


def _encoded(value: Any) -> Any:
    if value is None:
        return NONE
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, np.ndarray):
        return value.astype(np.float64)
    if isinstance(value, Mapping | list | tuple):
        import json  # which device ranks do without

        return without_home(json.dumps(value, default=_json_default))
    # Some MPI libraries end their version text with a NUL, which HDF5 does not store.
    return without_home(str(value).replace("\0", ""))


def _json_default(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _decoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value in ("", NONE):
        return None
    if isinstance(value, str) and value[0] in "[{":
        import json  # which device ranks do without

        with suppress(ValueError):
            return json.loads(value)
    return value
