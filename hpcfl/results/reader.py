"""Reader of the HDF5 files of runs."""

from __future__ import annotations

import glob
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import make, options_of, stated
from hpcfl.options.training import TrainOptions
from hpcfl.report import brief, formats
from hpcfl.report.formats import counted
from hpcfl.results import schema
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.record import KNOWN, Counts, Flags, Floats, Phases, sizes
from hpcfl.results.schema import SCHEMA, Metric
from hpcfl.results.statistics import median
from hpcfl.system import files, hdf5, outputs
from hpcfl.values import dataclass, replace

# Text options, which are never read as JSON: a note may look like a list.
_TEXTS = {
    name
    for group in (BenchOptions, TrainOptions)
    for name, about in options_of(group).items()
    if about.type is str
}


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run: its options, its environment and its finished rounds.

    The first axis of an array is the R finished rounds; the others are as in
    :class:`~hpcfl.results.record.RoundRecord`, for P phases and N devices. An array that the run
    does not record has an axis of ranks or helpers of length 0, or holds only unknown values.
    """

    path: Path
    status: str  # complete, failed, interrupted or running; a killed run is left as running
    protocol: str
    command: str
    started: str  # ISO 8601, UTC
    finished: str | None  # in the same format; None while the run has not ended
    run_id: str  # random
    phases: list[str]
    # The values are str, int, float, bool, list or dict; None stands for no value.
    config: dict[str, Any]
    environment: dict[str, Any]
    bytes_up: Counts
    bytes_down: Counts
    messages_up: Counts
    messages_down: Counts
    wall_seconds: Floats
    cpu_seconds: Floats
    round_seconds: Floats
    survived: Flags
    validated: Flags
    warmup: Flags
    promise_failure: Floats
    lost_phase: Phases
    detect_seconds: Floats
    recover_seconds: Floats
    begin_seconds: Floats
    end_seconds: Floats
    computing_seconds: Floats
    mpi_seconds: Floats
    waiting_seconds: Floats
    skew_seconds: Floats
    clock_offset_seconds: Floats
    clock_uncertainty_seconds: Floats
    resident_bytes: Floats
    peak_bytes: Floats
    event_seconds: Floats
    late_phase: Phases
    late_reason: Phases
    in_committee: Flags
    helper_bytes_up: Counts
    helper_bytes_down: Counts
    helper_messages_up: Counts
    helper_messages_down: Counts
    helper_wall_seconds: Floats
    helper_cpu_seconds: Floats
    training: dict[str, Floats]  # shapes (R,); empty without training
    partition: NDArray[np.int64] | None  # samples, shape (N, classes)
    asked: dict[str, Any] | None  # see `hpcfl.options.definition.asked_for`
    # Each launch after the first: ``command``, ``started``, ``first_round``, and its environment.
    resumed: list[dict[str, Any]]
    # The enrolment before the rounds of the last launch, as a run of one round; None without one.
    enrolment: Run | None

    def __repr__(self) -> str:
        wrong = int((~self.validated).sum())
        accuracy = self.training.get(Metric.ACCURACY, np.empty(0))
        return brief.line(
            "Run",
            self.title,
            f"N={self.devices}",
            f"d={self.config.get('dim', '?')}",
            counted(self.rounds, "round"),
            f"median {formats.time(median(self.round_seconds[self.measured]))}",
            f"{wrong} wrong" if wrong else "validated" if self.rounds else "",
            *(f"accuracy {formats.number(float(value))}" for value in accuracy[-1:]),
            "" if self.status == "complete" else self.status,
            end=self.path.name,
        )

    @property
    def title(self) -> str:
        """The protocol, or ``ALGORITHM by PROTOCOL`` for training."""
        if not self.training:
            return self.protocol
        return f"{self.config.get('algorithm')} by {self.protocol}"

    @property
    def rounds(self) -> int:
        """Number of finished rounds, warm-up included."""
        return len(self.warmup)

    @property
    def launches(self) -> dict[int, dict[str, Any]]:
        """The environment of every launch that completed a round, by the index of its first one."""
        # Of the launches that began with the same round, only the last can have completed one.
        later = {one[schema.FIRST_ROUND]: one for one in self.resumed}
        played = {first: one for first, one in later.items() if first < self.rounds}
        return {0: self.environment} | played

    @property
    def devices(self) -> int:
        """Number of devices N."""
        return self.survived.shape[1]

    @property
    def dim(self) -> int:
        """Number of parameters d from the options; raises HpcflError if it is not recorded."""
        if self.config.get("dim") is None:
            raise HpcflError(f"{self.path} does not record the option dim")
        return int(self.config["dim"])

    def link(self, **asked: float | None) -> LinkModel:
        """Return the link model, with values from `asked`, else from the file, else the defaults.

        Names are fields of `LinkModel`; a value of None counts as not given. Raises UsageError for
        an unknown name, and for a value of the wrong type or out of range.
        """
        stored = {name: self.config.get(name) for name in options_of(LinkModel)}
        known = {name: value for name, value in stored.items() if isinstance(value, int | float)}
        return make(LinkModel, known | stated(LinkModel, asked))

    @property
    def unfinished(self) -> str | None:
        """How an incomplete run ended, worded to follow its path; None if it is complete."""
        if self.status == "complete":
            return None
        command = "train" if self.training else "bench"
        how = {"running": "has not ended or was killed"}.get(self.status, f"is {self.status}")
        resume = f"hpcfl {command} --resume {shlex.quote(str(self.path))} continues it"
        more = f"; {resume}" if self.status == "interrupted" else ""
        return f"{how} after {counted(self.rounds, 'round')}{more}"

    @property
    def measured(self) -> Flags:
        """Which rounds are measured (validated and not warm-up): ndarray of bool, shape (R,)."""
        return self.validated & ~self.warmup

    @property
    def ordinary(self) -> Flags:
        """Which devices were outside the committee in each round: ndarray of bool, shape (R, N).

        Without a committee these are all devices, otherwise only those that took part in the round.
        """
        if not self.in_committee.any():
            return np.ones_like(self.survived)
        moved = (self.messages_up + self.messages_down).sum(axis=1)
        return (moved > 0) & ~self.in_committee

    def slowest_cpu_seconds(self, role: str) -> Floats:
        """Return the CPU seconds of the slowest ``device``, ``member`` or ``helper``.

        The shape is (measured, P + 1): P phases of each measured round, then their total. If the
        run has a committee, members are the devices in it, devices are those outside it, and only
        those whose vectors are in the aggregate count. A round without any has NaN.
        """
        found = self.cpu_seconds[..., :-1]
        among = self.ordinary if role == "device" else self.in_committee
        if role == "helper":
            found = self.helper_cpu_seconds
            among = np.ones((self.rounds, self.helpers), np.bool_)
        elif self.in_committee.any():
            among = self.survived & among
        together = with_total(found)[self.measured]
        counts = np.broadcast_to(among[self.measured][:, None], together.shape)
        slowest = together.max(axis=-1, where=counts, initial=-1.0)
        return np.where(slowest < 0, np.nan, slowest)

    def modelled_seconds(self, link: LinkModel) -> Floats:
        """Return the modelled seconds of each phase of the measured rounds, shape (measured, P).

        If the run has a population, they are those of its event clock, for no other link.
        """
        if np.isfinite(self.event_seconds).all():
            return self.event_seconds[self.measured]
        return link.seconds_of(self)[self.measured]

    def survivor_bytes(self, role: str = "device") -> Floats:
        """Return the mean bytes sent by each ``device`` or ``member`` that is in the aggregate.

        The shape is (measured,). A round without any has NaN.
        """
        among = self.survived & (self.ordinary if role == "device" else self.in_committee)
        among = among[self.measured]
        # Whole numbers below 2^53 add up exactly.
        sent = (self.bytes_up[self.measured].sum(axis=1) * among).sum(axis=1)
        count = among.sum(axis=1)
        return np.divide(sent, count, out=np.full(len(sent), np.nan), where=count > 0)

    @property
    def server_ranks(self) -> int:
        """Number of ranks of the server, which come first."""
        return int(str(self.config.get("server_ranks", 1)))

    @property
    def helpers(self) -> int:
        """Number K of helpers."""
        return self.helper_cpu_seconds.shape[-1]

    @property
    def helped(self) -> Flags:
        """Which helpers stayed until the end of each round, shape (R, K).

        A helper stayed if it exchanged messages in the last phase in which any helper did. Earlier
        phases do not count, because all helpers enrol. Means leave out helpers that dropped out.
        """
        moved = np.greater(self.helper_messages_up + self.helper_messages_down, 0)
        last = moved.shape[1] - 1 - np.argmax(moved.any(axis=2)[:, ::-1], axis=1)
        return np.asarray(moved[np.arange(len(moved)), last])

    @property
    def ranks_of(self) -> dict[str, slice]:
        """The ranks of the ``server`` and of each ``helper``, and those that hold a ``device``."""
        servers, others = self.server_ranks, self.server_ranks + self.helpers
        return {
            "server": slice(servers),
            "helper": slice(servers, others),
            "device": slice(others, None),
        }

    def rank_name(self, rank: int, other: str = "") -> str:
        """Return the name of a rank; for one that holds devices, `other` and its number."""
        if rank >= self.server_ranks + self.helpers:
            return f"{other}{rank}"
        if rank >= self.server_ranks:
            return f"helper {rank - self.server_ranks}"
        return "server" if self.server_ranks == 1 else f"server {rank}"


def with_total(values: NDArray[Any]) -> NDArray[Any]:
    """Return values with their sum over phases, the second axis, appended to that axis."""
    return np.concatenate([values, values.sum(axis=1, keepdims=True)], axis=1)


def load(path: str | os.PathLike[str]) -> Run:
    """Return the run in a file; a file that is still being written holds the rounds so far.

    Raises UsageError if there is no such file, and HpcflError if it is not a results file of hpcfl,
    follows another major version of the schema, or is damaged.
    """
    path = Path(path)
    files.require(path)
    try:
        # Without a lock, because the writer holds one, and reading while it writes is safe.
        with hdf5.opened(path, "r", lock=False) as file:
            _check_schema(str(file.attrs.get("schema", "")), path)
            return _read(file, path)
    except OSError as error:
        raise HpcflError(
            f"{path} is not a results file, or cannot be read as HDF5 ({hdf5.reason(error)})"
        ) from error
    except HpcflError:
        raise
    except Exception as error:  # missing or malformed contents raise many kinds of exceptions
        raise HpcflError(
            f"{path} is damaged: its contents do not follow {SCHEMA} ({files.brief(error)})"
        ) from error


def _check_schema(found: str, path: Path) -> None:
    # A minor version only adds to the file, so files of all minor versions can be read.
    if found.partition(".")[0] != SCHEMA:
        raise HpcflError(
            f"{path} follows the schema {found or 'of another program'}, but this version of hpcfl "
            f"reads {SCHEMA}"
        )


def _read(file: Any, path: Path) -> Run:
    root = _attributes(file)
    played = _played(file)
    finished = len(played["warmup"])
    asked = root.get(schema.ASKED)
    resumed = file.get(schema.RESUMED, {})
    run = Run(
        path=path,
        status=root[schema.STATUS],
        protocol=root["protocol"],
        command=root["command"],
        started=root["started"],
        finished=root[schema.FINISHED] or None,
        run_id=root["run_id"],
        config=schema.decode(_attributes(file[schema.CONFIG]), _TEXTS),
        environment=schema.decode(_attributes(file[schema.ENVIRONMENT])),
        asked=None if asked is None else json.loads(asked),
        training={name: all_[:finished] for name, all_ in file.get(schema.TRAINING, {}).items()},
        partition=file[schema.PARTITION][()] if schema.PARTITION in file else None,
        resumed=[
            schema.decode(_attributes(resumed[str(number + 1)])) for number in range(len(resumed))
        ],
        enrolment=None,
        **played,
    )
    once = _played(file[schema.ENROLMENT]) if schema.ENROLMENT in file else {"warmup": ()}
    return replace(run, enrolment=replace(run, training={}, **once)) if len(once["warmup"]) else run


def _played(group: Any) -> dict[str, Any]:
    """Return the fields of a `Run` for the phases and the finished rounds of a group."""
    rounds, phases = group[schema.ROUNDS], [name.decode() for name in group[schema.PHASES]]
    finished = schema.finished(rounds)
    lengths = sizes(len(phases), rounds["survived"].shape[1])
    return {"phases": phases} | {
        dataset.name: rounds[dataset.name][:finished]
        if dataset.name in rounds or dataset.unknown is None
        else np.full((finished, *dataset.shape(lengths)), dataset.unknown, dataset.dtype)
        for dataset in KNOWN
    }


def _attributes(group: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in group.attrs.items()}


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode() if isinstance(value, bytes) else value


def load_usable(files: Sequence[Path]) -> tuple[list[Run], list[HpcflError]]:
    """Return the runs in files and the errors of unreadable files; raise that of a single file."""
    runs: list[Run] = []
    errors: list[HpcflError] = []
    for file in files:
        try:
            runs.append(load(file))
        except HpcflError as error:
            if len(files) == 1:
                raise
            errors.append(error)
    return runs, errors


def find(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the results files that paths and patterns stand for, in their order, each file once.

    A folder stands for the files in it with an HDF5 suffix, sorted by name; a pattern such as
    ``results/*-100x*.h5`` stands for the files and folders that it matches. Raises UsageError if a
    path does not exist, or if there is no file.
    """
    asked = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    found: list[Path] = []
    for text in map(str, asked):
        matching = [text] if Path(text).exists() else sorted(glob.glob(text))
        if not matching:
            raise UsageError(f"there is no file or folder {text}")
        for path in map(Path, matching):
            inside = sorted(path.iterdir()) if path.is_dir() else []
            found += [one for one in inside if one.suffix.lower() in outputs.HDF5 and one.is_file()]
            found += [] if path.is_dir() else [path]
    if not found:
        places = ", ".join(map(str, asked)) or "an empty list"
        raise UsageError(f"no results (*.h5) in {places}: run hpcfl bench first")
    return list(dict.fromkeys(found))
