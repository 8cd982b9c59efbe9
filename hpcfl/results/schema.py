"""Schema of a results file: the names of all groups, datasets and attributes.

A results file is in HDF5. Attributes of its root describe the run; options and environment are
attributes of groups; each measured quantity is a dataset whose first axis is the round. The
writer, the reader and the documentation use the tables of this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Self

import numpy as np

from hpcfl.results.record import StoredDataset
from hpcfl.system.outputs import without_home

SCHEMA = "hpcfl/1"

# Attributes of the root. Status and end time have a fixed length, because they are overwritten in
# place when the run ends; a time is 2025-01-31T23:59:59Z. A resumed run has the options in `ASKED`.
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
# Type of a text that is known only when a launch ends.
WORD_TYPE = "S16"

# Groups and datasets of the root.
CONFIG, ENVIRONMENT, RESUMED = "config", "environment", "resumed"
PHASES, ROUNDS, TRAINING, PARTITION = "phases", "rounds", "training", "partition"
# Group of the last launch's enrolment: the file's phases and rounds again, with one round.
ENROLMENT = "enrolment"
# Group of the figures of a population's devices, by column.
POPULATION = "population"
# Attribute of a launch that resumed a run: the number of rounds that were finished before.
FIRST_ROUND = "first_round"
# Attributes known only when a launch ends that describe the run; the others describe the machine.
OF_THE_RUN = {"stop_reason"}
# Attribute of the environment: the host, hardware threads and devices of every rank.
PLACEMENT = "placement"
# The checkpoint of a training run is beside its results file, with this in place of the ending.
CHECKPOINT_SUFFIX = ".checkpoint.npz"
# Attribute of the configuration: which published data were missing, if any.
INCOMPLETE = "incomplete_data"
# Stored form of None.
NONE = "none"
# The dataset that marks finished rounds, beside the datasets of `hpcfl.results.record`.
MARKED = StoredDataset(
    "finished", np.bool_, unit="1", about="whether the round counts: its data are all there"
)


def finished(rounds: Any) -> int:
    """Return the number of finished rounds of a file: those before the first unmarked one."""
    return int(np.logical_and.accumulate(rounds[MARKED.name][()]).sum())


class Metric(StrEnum):
    """A metric of each training round, stored as a dataset of the group `TRAINING`."""

    about: str

    def __new__(cls, name: str, about: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.about = about
        return member

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
        "fraction of a device's coordinates that the other one of a pair also chose; NaN if none",
    )
    EPSILON_PAPER = "epsilon_paper", "privacy spent so far, as the algorithm's paper claims"
    EPSILON_PROVEN = (
        "epsilon_proven",
        "privacy spent so far, with a proof for the mechanism as run",
    )


def encode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options or facts as values that HDF5 attributes can hold.

    None becomes ``"none"``, an integer beyond 64 bits becomes its digits, and a list, tuple or
    mapping becomes JSON text. Values that HDF5 has a type for do not change.
    """
    return {name: _encoded(value) for name, value in values.items()}


def decode(attributes: Mapping[str, Any], texts: Collection[str] = ()) -> dict[str, Any]:
    """Return options or facts from attributes: the inverse of `encode`.

    Empty text, the placeholder of a value that is known only when a launch ends, becomes None.
    Values named in `texts` are never read as JSON.
    """
    return {
        name: value if name in texts and value not in ("", NONE) else _decoded(value)
        for name, value in attributes.items()
    }


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options or facts as they would be read back from a file."""
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
        import json  # here, because device ranks do not need it

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
        import json  # here, because device ranks do not need it

        with suppress(ValueError):
            return json.loads(value)
    return value
