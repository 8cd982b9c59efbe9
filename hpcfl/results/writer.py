"""Writer of a run's HDF5 file, which leaves all finished rounds readable if the run is killed.

An HDF5 file is corrupted if a process dies while it rewrites the file's *metadata* (the trees and
headers that locate the data). The writer therefore writes all metadata to a draft, with space for
some rounds, or for all if they are small, and renames the draft before the first round. Each round
then only overwrites raw data in place, and ``/rounds/finished`` marks the rounds that count. When
the space is used up, a copy with twice the space replaces the file atomically. At the end, a copy
without unused space does.

A full disk corrupts a file in the same way. The draft therefore has all its bytes allocated, so
that a lack of space shows before the first round.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfl import __version__
from hpcfl.errors import HpcflError, UsageError
from hpcfl.populations.population import COLUMNS, Population
from hpcfl.results import schema
from hpcfl.results.record import (
    COMMITTEE,
    FAILURES,
    HELPERS,
    KNOWN,
    POPULATION,
    RANK_TIMES,
    RoundRecord,
    StoredDataset,
    sizes,
)
from hpcfl.system import hdf5, outputs
from hpcfl.system.interruption import Left

# Largest space for rounds in a new file; it is doubled whenever it is used up.
_FIRST_BYTES = 1 << 24
# Rounds that are copied in one step.
_AT_ONCE = 256
# Metadata cache, enough for the nodes of one round: those of earlier rounds would waste memory.
_CACHE_BYTES = 1 << 18


def default_path(folder: str | os.PathLike[str], protocol: str, devices: int, dim: int) -> Path:
    """Return a unique file name for a run, which sorts by protocol, size and time."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(folder) / f"{protocol}-{devices}x{dim}-{now}-{secrets.token_hex(4)}.h5"


class ResultsWriter:
    """The results file of one run, open for writing; `written` counts the finished rounds in it.

    As a context manager, it closes the file with the status ``complete``, ``interrupted`` after
    `Left`, or ``failed`` after another exception. `rounds` is the largest number of rounds, warm-up
    included, and `once` names the phases of an enrolment. `at_end` maps facts of the environment
    that are known only at the end to placeholders. `training` names the metrics of each training
    round; `failures`, `ranks`, `helpers`, `committee` and `population` choose the optional
    datasets. Raises UsageError if the file exists or cannot be created.
    """

    # Closing and marking exclude each other. As HDF5's own lock, one for all files.
    _marking = threading.Lock()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        protocol: str,
        command: str,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        phases: Sequence[str],
        once: Sequence[str] = (),
        devices: int,
        rounds: int,
        asked: Mapping[str, Any] | None = None,
        at_end: Mapping[str, Any] | None = None,
        training: Sequence[str] = (),
        partition: Any | None = None,
        failures: bool = False,
        ranks: int = 0,
        helpers: int = 0,
        committee: bool = False,
        population: Population | None = None,
    ) -> None:
        self.path = Path(path)
        self.run_id = uuid.uuid4().hex
        self.written = 0
        self._rounds = rounds
        outputs.check(self.path, outputs.RESULTS)

        header = {
            "schema": schema.SCHEMA,
            "hpcfl_version": __version__,
            "run_id": self.run_id,
            "protocol": protocol,
            "command": command,
            "started": _now(),
        }
        if asked is not None:
            header[schema.ASKED] = json.dumps(asked)
        there = {FAILURES: failures, RANK_TIMES: ranks, HELPERS: helpers, COMMITTEE: committee}
        there[POPULATION] = population is not None
        datasets = [one for one in (*KNOWN, schema.MARKED) if not one.of or there[one.of]]
        lengths = sizes(len(phases), devices, ranks, helpers)
        a_round = sum(
            np.dtype(one.dtype).itemsize * math.prod(one.shape(lengths)) for one in datasets
        )
        self._allocated = min(rounds, max(1, _FIRST_BYTES // a_round))
        with self._creating(keep=True) as file:
            _fill_attributes(file, header)
            _fill_attributes(file.create_group(schema.CONFIG), config)
            _fill_attributes(file.create_group(schema.ENVIRONMENT), environment)
            _begin(file, schema.ENVIRONMENT, at_end or {})
            _name_phases(file, phases)
            _allocate(file.create_group(schema.ROUNDS), datasets, lengths, self._allocated)
            if once:
                group = file.create_group(schema.ENROLMENT)
                _name_phases(group, once)
                parts = [one for one in datasets if one.of in ("", HELPERS)]
                lengths = sizes(len(once), devices, helpers=helpers)
                _allocate(group.create_group(schema.ROUNDS), parts, lengths, 1)
            if population is not None:
                table = file.create_group(schema.POPULATION)
                for name in COLUMNS:
                    table[name] = getattr(population, name)
            if partition is not None:
                table = file.create_dataset(schema.PARTITION, data=np.asarray(partition, np.int64))
                table.dims[0].label, table.dims[1].label = "device", "class"
            if training:
                learned = [StoredDataset(name, np.float64) for name in training]
                _allocate(file.create_group(schema.TRAINING), learned, lengths, self._allocated)
        self._open(schema.ENVIRONMENT)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        command: str,
        environment: Mapping[str, Any],
        rounds: int,
        kept: int | None = None,
        asked: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        at_end: Mapping[str, Any] | None = None,
        ranks: int = 0,
    ) -> ResultsWriter:
        """Open the file of an unfinished run, to append rounds after its finished ones.

        The first `kept` finished rounds stay, by default all. The description of run and machine
        stays, except for the values in `config` and `asked`. A group of its own, ``/resumed/1`` and
        so on, describes the new launch. `rounds` includes the finished rounds, and `ranks` may be
        larger than before. The file is replaced as a whole. Raises UsageError if it cannot be
        opened or replaced, or if another process is writing it.
        """
        self = cls.__new__(cls)
        # Links are resolved, because the draft has to be in the folder of the file itself.
        self.path = Path(os.path.realpath(path))
        self._rounds = rounds
        with _told(UsageError, f"cannot continue {self.path}", ": see that it can be written to"):
            # A running writer holds a lock, which ends with its process.
            old = _opened(self.path, "r+")
        self._stat = os.stat(self.path)
        with old:
            self.run_id = str(old.attrs["run_id"])
            with suppress(OSError):  # a draft that a killed process left
                self._draft.unlink(missing_ok=True)
            finished = schema.finished(old[schema.ROUNDS])
            self.written = finished if kept is None else kept
            self._allocated = max(self.written, min(rounds, 2 * self.written + 1))
            launch = f"{schema.RESUMED}/{len(old.get(schema.RESUMED, ())) + 1}"
            with self._creating() as file:
                _copy(old, file, self._allocated, self.written, ranks)
                _fill_attributes(file[schema.CONFIG], config or {})
                if asked is not None:
                    file.attrs[schema.ASKED] = json.dumps(asked)
                for name in schema.OF_THE_RUN & (at_end or {}).keys():
                    file[schema.ENVIRONMENT].attrs[name] = _fixed("")
                told = {"command": command, "started": _now(), schema.FIRST_ROUND: self.written}
                _fill_attributes(file.require_group(launch), {**told, **environment})
                _begin(file, launch, at_end or {})
            self._open(launch)
        return self

    @contextmanager
    def _creating(self, *, keep: bool = False) -> Iterator[Any]:
        """Yield a draft to be filled, which then becomes the file, with all its space allocated.

        With `keep` it must not replace any file; otherwise it must replace the file that was open.
        """
        if not keep and not (
            self.path.exists() and os.path.samestat(self._stat, os.stat(self.path))
        ):
            raise HpcflError(f"{self.path} was removed, moved or replaced while it was written to")
        advice = ": make room, or choose another place with --output"
        with (
            _told(UsageError, f"cannot create {self.path}", advice),
            outputs.replacing(self.path, self._draft, keep=keep) as draft,
            _opened(draft, "x") as file,
        ):
            yield file

    def _open(self, launch: str) -> None:
        """Open the created file for writing rounds."""
        with _told(UsageError, f"cannot write to {self.path}"):
            # Without a cache of chunks, which would hold rounds that are never read again.
            self._file = _opened(self.path, "r+", rdcc_nbytes=0)
        # A node of HDF5's trees takes six times the memory that HDF5 accounts for it.
        config = self._file.id.get_mdc_config()
        config.set_initial_size = True
        config.min_size = config.initial_size = config.max_size = _CACHE_BYTES
        self._file.id.set_mdc_config(config)
        self._launch = launch
        self._stat = os.stat(self.path)
        self._datasets = dict(self._file[schema.ROUNDS])
        self._finished = self._datasets.pop(schema.MARKED.name)
        self._training = dict(self._file.get(schema.TRAINING, {}))

    def enrolled(self, record: RoundRecord) -> None:
        """Write the cost of the enrolment; raises HpcflError if the file system refuses it."""
        with _told(HpcflError, f"cannot write the enrolment to {self.path}"):
            rounds = dict(self._file[schema.ENROLMENT][schema.ROUNDS])
            _write(rounds, 0, vars(record) | {schema.MARKED.name: True})

    def append(self, record: RoundRecord, training: Mapping[str, Any] | None = None) -> None:
        """Write one round so that it survives the death of this process.

        `training` has a value for each metric named at the start. Raises HpcflError if the file
        system refuses the data.
        """
        command = f"hpcfl {'train' if self._training else 'bench'} --resume"
        kept = (
            "the rounds before it are kept; make room, and continue with "
            f"{command} {shlex.quote(str(self.path))}"
        )
        if self.written == self._allocated:
            try:
                self._grow()
            except UsageError as error:
                raise HpcflError(f"{error}; {kept}") from error
        values = {name: getattr(record, name) for name in self._datasets} | dict(training or {})
        with _told(HpcflError, f"cannot write round {self.written} to {self.path}", f": {kept}"):
            _write(self._datasets | self._training, self.written, values)
            # Two flushes: the mark must not reach the file before the data of the round.
            self._file.flush()
            self._finished[self.written] = True
            self._file.flush()
        self.written += 1

    def _grow(self) -> None:
        """Replace the file by a copy with space for twice as many rounds."""
        allocated = min(self._rounds, 2 * self._allocated)
        with self._creating() as file:
            _copy(self._file, file, allocated, self.written)
        self._file.close()
        self._allocated = allocated
        self._open(self._launch)

    def mark_interrupted(self) -> None:
        """Set the status to ``interrupted``, from any thread; `close` replaces it later."""
        # A closed file refuses, so what `close` wrote stays.
        with self._marking, suppress(OSError, RuntimeError, ValueError, KeyError):
            self._file.attrs.modify(schema.STATUS, np.array("interrupted", schema.STATUS_TYPE))
            self._file.flush()

    def record_end(self, values: Mapping[str, Any]) -> None:
        """Write facts named in `at_end`, which are known only when the run ends.

        Text has at most 16 bytes. Raises HpcflError if the file system refuses the data.
        """
        with _told(HpcflError, f"cannot finish {self.path}"):
            for name, value in values.items():
                group = schema.ENVIRONMENT if name in schema.OF_THE_RUN else self._launch
                self._file[group].attrs.modify(name, _fixed(value))

    def close(self, status: str) -> None:
        """Set the status, cut the file to its finished rounds, and close it if it is open."""
        if not self._file:
            return
        with _told(HpcflError, f"cannot finish {self.path}"), self._marking:
            _end(self._file, status)
            self._file.close()
        if self.written < self._allocated:
            # This only frees space: readers use the marks, so on a full disk the file may stay.
            with suppress(HpcflError), self._creating() as file, _opened(self.path, "r") as whole:
                _copy(whole, file, self.written, self.written)

    @property
    def _draft(self) -> Path:
        # Hidden and without .h5, so that nobody takes it for results.
        return self.path.with_name(f".{self.path.name}.{self.run_id[:8]}.part")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close("complete")
            return
        # The exception that ended the run matters more than an error while its file is closed.
        with suppress(HpcflError):
            self.close("interrupted" if isinstance(error, Left) else "failed")


def complete(path: Path) -> None:
    """Mark a file as complete if its run was killed after the last round."""
    with _told(HpcflError, f"cannot finish {path}"), _opened(path, "r+") as file:
        _end(file, "complete")


@contextmanager
def _told(problem: type[HpcflError], sentence: str, advice: str = "") -> Iterator[None]:
    """Raise `problem` in place of exceptions of HDF5 and the file system."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise problem(f"{sentence} ({hdf5.reason(error)}){advice}") from error


def _opened(path: Path, mode: str, **more: Any) -> Any:
    # The oldest file format has no checksums, so a half-written attribute corrupts only itself.
    return hdf5.opened(path, mode, libver="earliest", **more)


def _begin(file: Any, launch: str, at_end: Mapping[str, Any]) -> None:
    """Create the attributes of fixed length that say how run and launch ended."""
    file.attrs.create(schema.STATUS, np.bytes_("running"), dtype=schema.STATUS_TYPE)
    file.attrs.create(schema.FINISHED, np.bytes_(""), dtype=schema.TIME_TYPE)
    for name, value in at_end.items():
        file[launch].attrs.create(name, _fixed(value))


def _end(file: Any, status: str) -> None:
    # Fixed-length values of the same type are overwritten in place.
    file.attrs.modify(schema.FINISHED, np.array(_now(), schema.TIME_TYPE))
    file.attrs.modify(schema.STATUS, np.array(status, schema.STATUS_TYPE))


def _allocate(
    group: Any, datasets: Iterable[StoredDataset], lengths: Mapping[str, int], rounds: int
) -> None:
    """Create datasets with allocated space for `rounds` rounds, one chunk per round."""
    for wanted in datasets:
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        early.set_fill_time(h5py.h5d.FILL_TIME_ALLOC)
        shape = wanted.shape(lengths)
        dataset = group.create_dataset(
            wanted.name,
            shape=(rounds, *shape),
            maxshape=(None, *shape),
            chunks=(1, *shape),
            dtype=wanted.dtype,
            fillvalue=wanted.unknown,
            dcpl=early,
        )
        for axis, label in enumerate(("round", *wanted.axes)):
            dataset.dims[axis].label = label
        if wanted.unit:
            dataset.attrs["unit"] = wanted.unit


def _name_phases(group: Any, phases: Sequence[str]) -> None:
    group.create_dataset(schema.PHASES, data=list(phases), dtype=h5py.string_dtype())


def _write(datasets: Mapping[str, Any], index: int, values: Mapping[str, Any]) -> None:
    for name, dataset in datasets.items():
        value = np.asarray(values[name])
        # A launch with fewer ranks than the first leaves the values of the others unknown.
        dataset[(index, *map(slice, value.shape))] = value


def _copy(old: Any, new: Any, rounds: int, kept: int, ranks: int = 0) -> None:
    """Copy the first `kept` rounds and all else of a file to a file with space for `rounds`.

    The new file has space for at least `ranks` ranks.
    """
    known = {dataset.name: dataset for dataset in (*KNOWN, schema.MARKED)}
    for name, value in old.attrs.items():
        new.attrs.create(name, value, dtype=old.attrs.get_id(name).dtype)
    for name in old:
        if name not in (schema.ROUNDS, schema.TRAINING):
            old.copy(name, new)
            continue
        group = new.create_group(name)
        for word, data in old[name].items():
            axes = tuple(dim.label for dim in data.dims)[1:]
            lengths = dict(zip(axes, data.shape[1:], strict=True))
            lengths["rank"] = max(ranks, lengths.get("rank", 0))
            of_training = StoredDataset(word, np.float64, axes)
            _allocate(group, [known.get(word, of_training)], lengths, rounds)
            for start in range(0, kept, _AT_ONCE):
                part = slice(start, min(start + _AT_ONCE, kept))
                group[word][(part, *map(slice, data.shape[1:]))] = data[part]


def _fill_attributes(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in schema.encode(values).items():
        target.attrs[name] = value


def _fixed(value: float | str | NDArray[np.float64]) -> NDArray[Any]:
    """Return a value with a fixed-length type, which can be overwritten in place."""
    if isinstance(value, str):
        return np.array(value.encode(), schema.WORD_TYPE)
    return np.asarray(value, np.float64)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
