"""What a results file holds: every group, dataset and attribute, named once.

A file is HDF5. Its root has attributes that say what the run was; options and environment are
attributes of groups; everything that is measured is a dataset whose first axis is the round.
`docs/method.md` describes it for those who read it with other tools, and the site of the
documentation has a page made from what is said here.
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
STATUSES = ("running", "complete", "failed", "interrupted")

# Attributes of the root, all of them text: written when the file is created,
HEADER = {
    "schema": "version of the layout of the file",
    "hpcfl_version": "build of hpcfl that wrote it",
    "run_id": "random number of the run, 32 hex digits",
    "protocol": "aggregation protocol",
    "command": "command line that does the same",
    "started": "when the run began, UTC",
}
# and when the run ends, in place, so they have a fixed length.
STATUS, FINISHED = "status", "finished"
AT_END = {
    STATUS: "running, complete, failed, or interrupted by a signal",
    FINISHED: "when the run ended, UTC; empty before",
}
# From it a run goes on.
ASKED = "asked"
ADDED = {ASKED: "what was asked for, as JSON; files of earlier versions do without"}
STATUS_TYPE, TIME_TYPE = "S11", "S20"  # a time is 2025-01-31T23:59:59Z
# Text that is found out when a launch ends.
WORD_TYPE = "S16"

# Groups and datasets of the root.
CONFIG, ENVIRONMENT, RESUMED = "config", "environment", "resumed"
PHASES, ROUNDS, TRAINING, PARTITION = "phases", "rounds", "training", "partition"
# Of the rounds: which of them count.
MARKS = "finished"
# Of a launch that went on with a run: the number of rounds that were finished before.
FIRST_ROUND = "first_round"
# Of what is found out when a launch ends, this is the run's: the others describe the machine.
OF_THE_RUN = {"stop_reason"}
# Of the environment: where every rank was, its host, hardware threads and devices.
PLACEMENT = "placement"
# And whether the results file was locked while it was written.
LOCKED = "results_locked"
# The checkpoint of a training run is beside its results file, with this in place of the ending.
CHECKPOINT_SUFFIX = ".checkpoint.npz"
# Of the configuration: what of the published data was not there, where some was missing.
INCOMPLETE = "incomplete_data"
# How a value that there is not is stored.
NONE = "none"

_TRAFFIC = ("phase", "device")
_OF_HELPERS = ("phase", "helper")
_TIMES = ("phase", "device or server")
NOT_LOST = -1


@dataclass(frozen=True)
class StoredDataset:
    """A dataset of the rounds; one round of it is the field of `RoundRecord` with its name."""

    name: str
    dtype: type
    axes: tuple[str, ...]  # labels of those after the first, the round
    unit: str  # ``bytes``, ``s``, ``1`` for what has none, or "" for what its name says
    about: str = ""  # what it is
    # What stands for rounds that were measured without it, by an earlier version or by a run that
    # could not go on when ranks die. None where all files have it.
    unknown: float | None = None

    def shape(self, phases: int, devices: int, ranks: int = 0, helpers: int = 0) -> tuple[int, ...]:
        """Return the shape of one round of it."""
        sizes = {"phase": phases, "device": devices, "device or server": devices + 1}
        sizes |= {"rank": ranks, "helper": helpers}
        return tuple(sizes[label] for label in self.axes)


DATASETS = (
    StoredDataset(
        "bytes_up", np.uint64, _TRAFFIC, "bytes", "what the device sent, envelopes included"
    ),
    StoredDataset(
        "bytes_down", np.uint64, _TRAFFIC, "bytes", "what it received, envelopes included"
    ),
    StoredDataset("messages_up", np.uint64, _TRAFFIC, "1", "messages that it sent"),
    StoredDataset("messages_down", np.uint64, _TRAFFIC, "1", "messages that it received"),
    StoredDataset(
        "wall_seconds",
        np.float64,
        _TIMES,
        "s",
        "elapsed time of the device's part of the phase; the server is last",
    ),
    StoredDataset(
        "cpu_seconds",
        np.float64,
        _TIMES,
        "s",
        "CPU time of the device's part of the phase; the server is last",
    ),
    StoredDataset(
        "round_seconds", np.float64, (), "s", "elapsed time of the round, on the slowest rank"
    ),
    StoredDataset(
        "survived", np.bool_, ("device",), "1", "whether the device's vector is in the sum"
    ),
    StoredDataset("validated", np.bool_, (), "1", "whether the sum is right"),
    StoredDataset("warmup", np.bool_, (), "1", "whether the round is of the warm-up"),
    StoredDataset(
        "promise_failure",
        np.float64,
        (),
        "1",
        "at most how likely it is that something that was promised does not hold of the round, "
        "recomputed from who was there; NaN where nothing is promised",
        math.nan,
    ),
)
# Only of runs that go on when ranks die.
FAILURES = (
    StoredDataset(
        "lost_phase",
        np.int16,
        ("device",),
        "1",
        "phase, its index in `/phases`, in which the device's rank was found dead; the number of "
        "phases for outside of all; -1 if it was alive, or dead before",
        NOT_LOST,
    ),
    StoredDataset(
        "detect_seconds",
        np.float64,
        (),
        "s",
        "how long it took to find ranks dead; NaN without a loss",
        math.nan,
    ),
    StoredDataset(
        "recover_seconds",
        np.float64,
        (),
        "s",
        "how long it took to continue without them; NaN without a loss",
        math.nan,
    ),
)
# What ranks did with their time and memory; only of runs of benchmarks. NaN for a rank that died,
# and what is not known of earlier rounds.
_RANK_TIMES = ("phase", "rank")
RANK_TIMES = (
    StoredDataset(
        "begin_seconds",
        np.float64,
        _RANK_TIMES,
        "s",
        "when the rank began the phase, since the first one began the round, by the server's clock",
        math.nan,
    ),
    StoredDataset(
        "end_seconds", np.float64, _RANK_TIMES, "s", "when it ended the phase, likewise", math.nan
    ),
    StoredDataset(
        "computing_seconds",
        np.float64,
        _RANK_TIMES,
        "s",
        "what the rank computed in the phase",
        math.nan,
    ),
    StoredDataset(
        "mpi_seconds",
        np.float64,
        _RANK_TIMES,
        "s",
        "what the rank spent in calls of MPI, waiting left out",
        math.nan,
    ),
    StoredDataset(
        "waiting_seconds", np.float64, _RANK_TIMES, "s", "what the rank waited for others", math.nan
    ),
    StoredDataset(
        "skew_seconds",
        np.float64,
        (),
        "s",
        "between the first and the last rank that left the barrier before the round",
        math.nan,
    ),
    StoredDataset(
        "clock_offset_seconds",
        np.float64,
        ("rank",),
        "s",
        "what was added to the rank's clock",
        math.nan,
    ),
    StoredDataset(
        "clock_uncertainty_seconds",
        np.float64,
        (),
        "s",
        "by how much the worst of these may be off",
        math.nan,
    ),
    StoredDataset(
        "resident_bytes",
        np.float64,
        ("rank",),
        "bytes",
        "resident memory of the rank's process when the round began",
        math.nan,
    ),
    StoredDataset(
        "peak_bytes",
        np.float64,
        ("rank",),
        "bytes",
        "its peak in the round; pages that processes share count for each",
        math.nan,
    ),
)
# What each phase cost each helper; only of protocols that have helpers.
HELPERS = (
    StoredDataset("helper_bytes_up", np.uint64, _OF_HELPERS, "bytes", "what the helper sent", 0),
    StoredDataset("helper_bytes_down", np.uint64, _OF_HELPERS, "bytes", "what it received", 0),
    StoredDataset("helper_messages_up", np.uint64, _OF_HELPERS, "1", "messages that it sent", 0),
    StoredDataset(
        "helper_messages_down", np.uint64, _OF_HELPERS, "1", "messages that it received", 0
    ),
    StoredDataset(
        "helper_wall_seconds",
        np.float64,
        _OF_HELPERS,
        "s",
        "elapsed time of the helper's part of the phase",
        0,
    ),
    StoredDataset("helper_cpu_seconds", np.float64, _OF_HELPERS, "s", "CPU time of it", 0),
)
# Which devices were the committee; only of protocols that choose one. A member works for all, and
# its figures are never averaged with those of other devices.
COMMITTEE = (
    StoredDataset(
        "in_committee",
        np.bool_,
        ("device",),
        "1",
        "whether the device is in the committee of the round",
        0,
    ),
)
MARKED = StoredDataset(MARKS, np.bool_, (), "1", "whether the round counts: its data are all there")
KNOWN = (*DATASETS, *FAILURES, *RANK_TIMES, *HELPERS, *COMMITTEE)
# What each phase cost each device, and the server where it takes part.
SPENT = tuple(dataset.name for dataset in DATASETS if "phase" in dataset.axes)
SPENT_BY_HELPERS = tuple(dataset.name for dataset in HELPERS)


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
    if isinstance(value, str):
        # Some MPI libraries end their version text with a NUL, which HDF5 does not store.
        return without_home(value.replace("\0", ""))
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, np.ndarray):
        return value.astype(np.float64)
    if isinstance(value, Mapping | list | tuple):
        import json  # which device ranks do without

        return without_home(json.dumps(value, default=_json_default))
    return without_home(str(value))


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
