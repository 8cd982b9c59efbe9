"""Reads the HDF5 files of runs."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import make, options_of, stated
from hpcfl.options.training import TrainOptions
from hpcfl.report import brief, formats
from hpcfl.report.formats import counted, words
from hpcfl.results import schema
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.schema import SCHEMA, Metric
from hpcfl.system import files, hdf5, outputs


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run: what was asked for, where it ran, and every finished round.

    Arrays have the R finished rounds along their first axis; along the others they are as in
    :class:`~hpcfl.results.record.RoundRecord`, for P phases and N devices. Those that may be None
    are missing in files of earlier versions, or of runs that could not go on without a rank.
    """

    path: Path
    status: str  # one of `schema.STATUSES`; ``running`` also of a run that was killed
    protocol: str
    command: str
    started: str  # ISO 8601, UTC
    finished: str | None  # the same, None while the run has not ended
    run_id: str  # random
    phases: list[str]
    # Str, int, float, bool, list or dict; None where there is no value.
    config: dict[str, Any]
    environment: dict[str, Any]
    bytes_up: NDArray[np.uint64]
    bytes_down: NDArray[np.uint64]
    messages_up: NDArray[np.uint64]
    messages_down: NDArray[np.uint64]
    wall_seconds: NDArray[np.float64]
    cpu_seconds: NDArray[np.float64]
    round_seconds: NDArray[np.float64]
    survived: NDArray[np.bool_]
    validated: NDArray[np.bool_]
    warmup: NDArray[np.bool_]
    training: dict[str, NDArray[np.float64]]  # shapes (R,) or (R, N); empty without training
    partition: NDArray[np.int64] | None = None  # samples, shape (N, classes)
    asked: dict[str, Any] | None = None  # see `hpcfl.options.definition.asked_for`
    # The launches after the first: ``command``, ``started``, ``first_round``, and environment.
    resumed: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    promise_failure: NDArray[np.float64] | None = None
    lost_phase: NDArray[np.int16] | None = None
    detect_seconds: NDArray[np.float64] | None = None
    recover_seconds: NDArray[np.float64] | None = None
    begin_seconds: NDArray[np.float64] | None = None
    end_seconds: NDArray[np.float64] | None = None
    computing_seconds: NDArray[np.float64] | None = None
    mpi_seconds: NDArray[np.float64] | None = None
    waiting_seconds: NDArray[np.float64] | None = None
    skew_seconds: NDArray[np.float64] | None = None
    clock_offset_seconds: NDArray[np.float64] | None = None
    clock_uncertainty_seconds: NDArray[np.float64] | None = None
    resident_bytes: NDArray[np.float64] | None = None
    peak_bytes: NDArray[np.float64] | None = None
    helper_bytes_up: NDArray[np.uint64] | None = None
    helper_bytes_down: NDArray[np.uint64] | None = None
    helper_messages_up: NDArray[np.uint64] | None = None
    helper_messages_down: NDArray[np.uint64] | None = None
    helper_wall_seconds: NDArray[np.float64] | None = None
    helper_cpu_seconds: NDArray[np.float64] | None = None
    in_committee: NDArray[np.bool_] | None = None

    def __repr__(self) -> str:
        wrong = int((~self.validated).sum())
        accuracy = self.training.get(Metric.ACCURACY, np.empty(0))
        return brief.line(
            "Run",
            self.title,
            f"N={self.devices}",
            f"d={self.config.get('dim', '?')}",
            counted(self.rounds, "round"),
            f"median {formats.time(float(np.median(self.round_seconds[self.measured])))}"
            if self.measured.any()
            else "",
            f"{wrong} wrong" if wrong else "validated" if self.rounds else "",
            *(f"accuracy {formats.number(float(value))}" for value in accuracy[-1:]),
            "" if self.status == "complete" else self.status,
            end=self.path.name,
        )

    @property
    def title(self) -> str:
        """What was measured: the protocol, of training behind the algorithm."""
        if not self.training:
            return self.protocol
        return f"{self.config.get('algorithm')} by {self.protocol}"

    @property
    def rounds(self) -> int:
        """Number of finished rounds, warm-up included."""
        return len(self.warmup)

    @property
    def launches(self) -> dict[int, dict[str, Any]]:
        """The environment of every launch that played a round, by its first round.

        A run that was resumed has several.
        """
        # Of launches that began with the same round, all but the last played none.
        later = {one[schema.FIRST_ROUND]: one for one in self.resumed}
        played = {first: one for first, one in later.items() if first < self.rounds}
        return {0: self.environment} | played

    @property
    def devices(self) -> int:
        """Number of devices N."""
        return self.survived.shape[1]

    @property
    def dim(self) -> int:
        """Number of parameters d, from the options; HpcflError if the file does not tell."""
        if self.config.get("dim") is None:
            raise HpcflError(f"{self.path} does not record the option dim")
        return int(self.config["dim"])

    def link(self, **asked: float | None) -> LinkModel:
        """Return the link model: as asked for, else as stored with the run, else the default.

        The names are the fields of `LinkModel`, None where nothing is asked. Another name, and a
        value of the wrong type or out of range, are a UsageError.
        """
        stored = {name: self.config.get(name) for name in options_of(LinkModel)}
        known = {name: value for name, value in stored.items() if isinstance(value, int | float)}
        return make(LinkModel, known | stated(LinkModel, asked))

    @property
    def unfinished(self) -> str | None:
        """What is to be said of a run that is not complete, after its path; None of another."""
        after = f"after {counted(self.rounds, 'round')}"
        command, subject = ("train", "algorithm") if self.training else ("bench", "protocol")
        # Code of one's own is named anew.
        named = str((self.asked or {}).get(subject, ""))
        own = f"{shlex.quote(words(named))} " if ":" in named else ""
        resume = f"hpcfl {command} {own}--resume {shlex.quote(str(self.path))} continues"
        return {
            "complete": None,
            "failed": f"is of a run that failed {after}",
            "interrupted": f"is of a run that was interrupted {after}; {resume}",
            "running": f"is of a run that has not ended or was killed {after} (status running)",
        }[self.status]

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rounds count, the valid ones after warm-up: ndarray of bool, shape (R,)."""
        return self.validated & ~self.warmup

    @property
    def ordinary(self) -> NDArray[np.bool_]:
        """Which devices of each round were in no committee: ndarray of bool, shape (R, N).

        All of them where there is none; else those that took part in the round.
        """
        if self.in_committee is None:
            return np.ones_like(self.survived)
        moved = (self.messages_up + self.messages_down).sum(axis=1)
        return (moved > 0) & ~self.in_committee

    def slowest_cpu_seconds(self, role: str) -> NDArray[np.float64]:
        """Return the CPU seconds of the slowest ``device``, ``member`` or ``helper``.

        Of every phase of the measured rounds, and behind them of all phases together: shape
        (measured, P + 1). Where there is a committee, a device is one that is not in it, a member
        one that is, and those count whose vectors are in the aggregate. NaN for a round without
        any.
        """
        kept = self.measured
        if role == "helper":
            spent = self.helper_cpu_seconds
            found = np.zeros((len(kept), len(self.phases), 0)) if spent is None else spent
            among = np.ones((len(kept), found.shape[-1]), np.bool_)
        else:
            found = self.cpu_seconds[..., :-1]
            among = self._of_role(role)
        found, among = found[kept], among[kept]
        together = np.concatenate([found, found.sum(axis=1, keepdims=True)], axis=1)
        among = np.broadcast_to(among[:, None], together.shape)
        slowest = together.max(axis=-1, where=among, initial=-1.0)
        return np.where(slowest < 0, np.nan, slowest)

    def _of_role(self, role: str) -> NDArray[np.bool_]:
        if self.in_committee is None:
            return self.ordinary if role == "device" else np.zeros_like(self.survived)
        return self.survived & (self.in_committee if role == "member" else self.ordinary)

    def modelled_seconds(self, link: LinkModel) -> NDArray[np.float64]:
        """Return what a link makes of every phase of the measured rounds, shape (measured, P)."""
        kept = self.measured
        names = (*schema.SPENT, *schema.SPENT_BY_HELPERS)
        found = {name: getattr(self, name) for name in names}
        return link.seconds_of(
            {name: None if values is None else values[kept] for name, values in found.items()}
        )

    @property
    def server_ranks(self) -> int:
        """How many ranks, the first ones, are the server together."""
        return int(str(self.config.get("server_ranks", 1)))

    @property
    def helpers(self) -> int:
        """Number K of helpers."""
        return 0 if self.helper_cpu_seconds is None else self.helper_cpu_seconds.shape[-1]

    @property
    def helped(self) -> NDArray[np.bool_]:
        """Which helpers were there to the end of which rounds, shape (rounds, K).

        They moved something in the last phase in which any helper did: all enrol in the first
        round, of which some may drop out. A helper that has is no part of means.
        """
        if self.helper_messages_up is None or self.helper_messages_down is None:
            return np.zeros((self.rounds, 0), np.bool_)
        moved = np.greater(self.helper_messages_up + self.helper_messages_down, 0)
        last = moved.shape[1] - 1 - np.argmax(moved.any(axis=2)[:, ::-1], axis=1)
        return np.asarray(moved[np.arange(len(moved)), last])

    @property
    def helper_ranks(self) -> slice:
        """The ranks of helpers, behind the server's; none of them in one process."""
        return slice(self.server_ranks, self.server_ranks + self.helpers)

    @property
    def device_ranks(self) -> slice:
        """The ranks that hold devices, behind all others; none of them in one process."""
        return slice(self.server_ranks + self.helpers, None)

    def rank_name(self, rank: int, other: str = "") -> str:
        """Return what a rank is called: one that holds devices, its number after `other`."""
        if rank >= self.server_ranks + self.helpers:
            return f"{other}{rank}"
        if rank >= self.server_ranks:
            return f"helper {rank - self.server_ranks}"
        return "server" if self.server_ranks == 1 else f"server {rank}"

    def survivor_bytes(self, role: str = "device") -> NDArray[np.float64]:
        """Return the mean bytes that a device in the aggregate sent, of every measured round.

        Shape (measured,); NaN for a round without such devices. Members of a committee are none,
        but of the role ``member`` they are those that count.
        """
        kept = self.measured
        counted = (self.survived & self._of_role(role))[kept]
        # Whole numbers below 2^53 add up exactly.
        sent = (self.bytes_up[kept].sum(axis=1) * counted).sum(axis=1)
        count = counted.sum(axis=1)
        return np.divide(sent, count, out=np.full(len(sent), np.nan), where=count > 0)


def _opened(path: Path) -> Any:
    try:
        # Without a lock: the writer holds one, and what it does is safe to look at.
        return hdf5.opened(path, "r", lock=False)
    except OSError as error:
        # A user's own h5py.File of it in this process: it must then be opened in the same way.
        if "locking flag" not in str(error):
            raise
        return hdf5.opened(path, "r")


# Options that are words, such as a note that looks like a list.
_TEXTS = {
    name
    for group in (BenchOptions, TrainOptions)
    for name, about in options_of(group).items()
    if about.type is str
}


def load(path: str | os.PathLike[str]) -> Run:
    """Read one run; one that is still being written shows the rounds finished so far.

    Raises UsageError if there is no such file, and HpcflError if it is not a results file of hpcfl,
    follows another major version of the schema, or is damaged.
    """
    path = Path(path)
    files.require(path)
    try:
        with _opened(path) as file:
            _check_schema(str(file.attrs.get("schema", "")), path)
            return _read(file, path)
    except OSError as error:
        raise HpcflError(f"{path} cannot be read as HDF5 ({hdf5.reason(error)})") from error
    except HpcflError:
        raise
    except Exception as error:  # what is not there, or is something else, fails in many ways
        raise HpcflError(
            f"{path} is damaged: its contents do not follow {SCHEMA} ({files.brief(error)})"
        ) from error


def load_usable(
    files: Sequence[Path], objection: Callable[[Run], str | None]
) -> tuple[list[Run], list[HpcflError]]:
    """Read several runs, and leave out what cannot be used.

    `objection` returns why a run cannot be used, to be said after its path, or None. The errors are
    one for each file left out, a UsageError for an objection; of a single file the error is raised.
    """
    runs: list[Run] = []
    errors: list[HpcflError] = []
    for file in files:
        try:
            run = load(file)
            reason = objection(run)
            if reason is not None:
                raise UsageError(f"{file} {reason}")
        except HpcflError as error:
            if len(files) == 1:
                raise
            errors.append(error)
        else:
            runs.append(run)
    return runs, errors


def _check_schema(schema: str, path: Path) -> None:
    family, _, version = schema.partition("/")
    if family != "hpcfl":
        raise HpcflError(f"{path} is not a results file of hpcfl")
    # A minor version may add to the file, so it can be read all the same.
    if version.partition(".")[0] != SCHEMA.partition("/")[2]:
        raise HpcflError(
            f"{path} follows the schema {schema} and this version of hpcfl reads {SCHEMA}: "
            "use the version of hpcfl that wrote it"
        )


def _read(file: Any, path: Path) -> Run:
    root = _attributes(file)
    rounds = file[schema.ROUNDS]
    finished = int(np.logical_and.accumulate(rounds[schema.MARKS][()]).sum())
    asked = root.get(schema.ASKED)
    resumed = file.get(schema.RESUMED, {})
    training = file.get(schema.TRAINING, {})
    return Run(
        path=path,
        status=root[schema.STATUS],
        protocol=root["protocol"],
        command=root["command"],
        started=root["started"],
        finished=root[schema.FINISHED] or None,
        run_id=root["run_id"],
        phases=[name.decode() for name in file[schema.PHASES]],
        config=schema.decode(_attributes(file[schema.CONFIG]), _TEXTS),
        environment=_facts(file[schema.ENVIRONMENT]),
        asked=None if asked is None else json.loads(asked),
        training={name: values[:finished] for name, values in training.items()},
        partition=file[schema.PARTITION][()] if schema.PARTITION in file else None,
        resumed=[_facts(resumed[str(number)]) for number in range(1, len(resumed) + 1)],
        **{
            dataset.name: rounds[dataset.name][:finished]
            for dataset in schema.KNOWN
            if dataset.name in rounds or dataset.unknown is None
        },
    )


def _facts(group: Any) -> dict[str, Any]:
    return schema.decode(_attributes(group))


def _attributes(group: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in group.attrs.items()}


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode() if isinstance(value, bytes) else value


def find(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the results files that files and folders stand for, in the order given, each once.

    A folder stands for the files in it that have an ending of HDF5, sorted by name, and a pattern
    such as ``results/*-100x*.h5`` for the files and folders that it matches. A path that does not
    exist, and no file at all, are a UsageError.
    """
    asked = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(p) for p in paths]
    files: list[Path] = []
    for path in _matching(asked):
        if path.is_dir():
            files += sorted(
                file
                for file in path.iterdir()
                if file.suffix.lower() in outputs.HDF5 and file.is_file()
            )
        elif path.exists():
            files.append(path)
        else:
            raise UsageError(f"there is no file or folder {path}")
    if not files:
        places = ", ".join(str(path) for path in asked) or "an empty list"
        raise UsageError(f"no results (*.h5) in {places}: run hpcfl bench first")
    return list(dict.fromkeys(files))


def _matching(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths, and instead of one that does not exist those that it matches, if any do."""
    for path in paths:
        found = [] if path.exists() else sorted(glob.glob(str(path)))
        yield from map(Path, found) if found else (path,)
