"""Writes the HDF5 file of a run, so that a killed run leaves all its finished rounds readable.

An HDF5 file breaks when a process dies while it rewrites the file's *metadata* (the trees and
headers that say where the data lie). So all metadata are written before the first round, under
another name: the file appears under its own name complete, with space for some rounds, or for all
where they do not take much. After that a round only overwrites raw data in place, and
``/rounds/finished`` tells which rounds count. When the space is used up, a copy with twice as much
takes the file's place at once, as a copy without the rest does at the end.

A full disk breaks a file in the same way. So the draft has all its bytes, and what finds no room is
found before the first round.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
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
from hpcfl.results import schema
from hpcfl.results.record import (
    COMMITTEE,
    FAILURES,
    HELPERS,
    KNOWN,
    RANK_TIMES,
    RoundRecord,
    StoredDataset,
    sizes,
)
from hpcfl.system import hdf5, outputs
from hpcfl.system.interruption import Left

# Space for rounds that a new file has, if all take more; each further time it is doubled.
_FIRST_BYTES = 1 << 24
# Rounds that are copied at once.
_AT_ONCE = 256
# The nodes that a round needs, and some: those of rounds before would only take memory.
_CACHE_BYTES = 1 << 18


def default_path(folder: str | os.PathLike[str], protocol: str, devices: int, dim: int) -> Path:
    """Return a new file name for a run, one that sorts by protocol, size and time."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(folder) / f"{protocol}-{devices}x{dim}-{now}-{secrets.token_hex(4)}.h5"


class ResultsWriter:
    """The results file of one run, open for writing; `written` counts the finished rounds in it.

    A context manager: leaving it closes the file, with status ``complete``; ``interrupted`` if
    `Left` is on its way out, ``failed`` if another exception is. `rounds` is the largest number of
    rounds, warm-up included. `at_end` names what of the environment is found out when the run ends,
    with what stands for it until then. `training` names figures of each round; `failures`,
    `ranks`, `helpers` and `committee` say which of the optional datasets there are. A file that
    exists or cannot be created is a UsageError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        protocol: str,
        command: str,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        phases: Sequence[str],
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
            file.create_dataset(schema.PHASES, data=list(phases), dtype=h5py.string_dtype())
            _allocate(file.create_group(schema.ROUNDS), datasets, lengths, self._allocated)
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
        """Open the file of a run that did not come to its end, to go on behind its finished rounds.

        Of these the first `kept` stay, by default all. What the file says of run and machine stays,
        but for the values of `config`, and what is `asked` for. The launch that goes on is
        described in a group of its own, ``/resumed/1`` and so on; `rounds` counts those that are
        finished too, and `ranks` may be more than there were. The file is replaced as a whole. It
        is a UsageError if it cannot be opened or replaced, or another process is writing it.
        """
        self = cls.__new__(cls)
        # The file itself, where the path is a link to it: its folder is where it is replaced.
        self.path = Path(os.path.realpath(path))
        self._rounds = rounds
        with _told(UsageError, f"cannot continue {self.path}", ": see that it can be written to"):
            # The lock is that of a writer which is at work; it ends with the writer's process.
            old = _opened(self.path, "r+")
        self._stat = os.stat(self.path)
        with old:
            self.run_id = str(old.attrs["run_id"])
            with suppress(OSError):  # of a process that was killed while it wrote it
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
        """Yield a new file to be filled, which then takes its name with all its space.

        With `keep` it must not have the place of another file, else only of the one that was open.
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
        """Open the complete file at its path."""
        with _told(UsageError, f"cannot write to {self.path}"):
            # Without a cache of chunks: it would hold rounds that are never looked at again.
            self._file = _opened(self.path, "r+", rdcc_nbytes=0)
        # A node of HDF5's trees takes six times what it is accounted for.
        config = self._file.id.get_mdc_config()
        config.set_initial_size = True
        config.min_size = config.initial_size = config.max_size = _CACHE_BYTES
        self._file.id.set_mdc_config(config)
        self._launch = launch
        self._stat = os.stat(self.path)
        self._datasets = dict(self._file[schema.ROUNDS])
        self._finished = self._datasets.pop(schema.MARKED.name)
        self._training = dict(self._file.get(schema.TRAINING, {}))

    def append(self, record: RoundRecord, training: Mapping[str, Any] | None = None) -> None:
        """Write one round and make it safe against the death of this process.

        `training` has a value for each name given at the start.
        HpcflError says that the file system refuses the data.
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
            for name, dataset in (self._datasets | self._training).items():
                value = np.asarray(values[name])
                # Of a launch with fewer ranks than the first nothing is known of the others.
                dataset[(self.written, *map(slice, value.shape))] = value
            # Two flushes: the mark must not reach the file before what it vouches for.
            self._file.flush()
            self._finished[self.written] = True
            self._file.flush()
        self.written += 1

    def _grow(self) -> None:
        """Let a copy with space for twice as many rounds take the place of the file."""
        allocated = min(self._rounds, 2 * self._allocated)
        with self._creating() as file:
            _copy(self._file, file, allocated, self.written)
        self._file.close()
        self._allocated = allocated
        self._open(self._launch)

    def mark_interrupted(self) -> None:
        """Set the status to ``interrupted`` now, from any thread; how the run ends replaces it."""
        with suppress(OSError, RuntimeError, ValueError, KeyError):
            self._file.attrs.modify(schema.STATUS, np.array("interrupted", schema.STATUS_TYPE))
            self._file.flush()

    def record_end(self, values: Mapping[str, Any]) -> None:
        """Write what of the environment is found out when the run ends, by the names of `at_end`.

        Text has at most 16 bytes. HpcflError says that the file system refuses the data.
        """
        with _told(HpcflError, f"cannot finish {self.path}"):
            for name, value in values.items():
                group = schema.ENVIRONMENT if name in schema.OF_THE_RUN else self._launch
                self._file[group].attrs.modify(name, _fixed(value))

    def close(self, status: str) -> None:
        """End the file: set its status and cut it to its finished rounds. May be called again."""
        if not self._file:
            return
        with _told(HpcflError, f"cannot finish {self.path}"):
            _end(self._file, status)
            self._file.close()
        if self.written < self._allocated:
            # It only tidies up: readers go by the marks, so on a full disk the file stays as it is.
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
        # What goes wrong with a file that is given up is not what has to be told.
        with suppress(HpcflError):
            self.close("interrupted" if isinstance(error, Left) else "failed")


def complete(path: Path) -> None:
    """Mark a file as complete if its run was killed after the last round."""
    with _told(HpcflError, f"cannot finish {path}"), _opened(path, "r+") as file:
        _end(file, "complete")


@contextmanager
def _told(problem: type[HpcflError], sentence: str, advice: str = "") -> Iterator[None]:
    """Raise a problem in place of what HDF5 and the file system raise."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise problem(f"{sentence} ({hdf5.reason(error)}){advice}") from error


def _opened(path: Path, mode: str, **more: Any) -> Any:
    # The oldest file format has no checksums: a half-written attribute at the end of a run then
    # spoils nothing but itself.
    return hdf5.opened(path, mode, libver="earliest", **more)


def _begin(file: Any, launch: str, at_end: Mapping[str, Any]) -> None:
    """Create the attributes that tell how run and launch ended, of fixed length."""
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
    """Create datasets of all rounds, allocated, one round to a chunk."""
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


def _copy(old: Any, new: Any, rounds: int, kept: int, ranks: int = 0) -> None:
    """Copy a results file to another one with space for `rounds`, of which the `kept` first are in.

    And for so many ranks, if the old one has fewer.
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
