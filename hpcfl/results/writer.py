"""Writes the HDF5 file of a run, so that a killed run leaves all its finished rounds readable.

An HDF5 file breaks when a process dies while it rewrites the file's *metadata* (the trees and
headers that say where the data lie). So all metadata are written before the first round, under
another name: the file appears under its own name complete, with space for some rounds, or for all
where they do not take much. After that a round only overwrites raw data in place, and
``/rounds/finished`` tells which rounds count. When the space is used up, a copy with twice as much
takes the file's place at once: a run that is planned for a million rounds does not begin by writing
them.

A full disk breaks a file in the same way. So the draft's blocks are allocated by the file system as
well, and what finds no room is found before the first round.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shlex
import shutil
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
from hpcfl.report import formats
from hpcfl.results import schema
from hpcfl.results.record import RoundRecord
from hpcfl.results.schema import StoredDataset
from hpcfl.system import hdf5, outputs
from hpcfl.system.interruption import Left

# HDF5's index of chunks is a tree of nodes of 64 entries of 8 bytes with 65 keys of 24 bytes and 8
# for each axis. It grows at its right end, where a node is split so that nine tenths stay (HDF5
# file format specification, section III.A.1): so many bytes an entry, and for each of its axes.
_ENTRY_BYTES, _AXIS_BYTES = 37.0, 9.2
_HEADER_BYTES = 36_000
# Space for rounds that a new file has, if all take more; each further time it is doubled.
_FIRST_BYTES = 1 << 24
# What is copied of a dataset at once.
_AT_ONCE_BYTES = 1 << 24
# The nodes that a round needs, and some: those of rounds before would only take memory.
_CACHE_BYTES = 1 << 18


def default_path(folder: str | os.PathLike[str], protocol: str, devices: int, dim: int) -> Path:
    """Return a new file name for a run, one that sorts by protocol, size and time."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(folder) / f"{protocol}-{devices}x{dim}-{now}-{secrets.token_hex(4)}.h5"


class ResultsWriter:
    """The results file of one run, open for writing; `written` counts the finished rounds in it.

    A context manager: leaving it closes the file, with status ``complete``; ``interrupted`` if
    `Left` is on its way out, ``failed`` if another exception is. `config` and `environment` are
    stored by `schema.encode`, `asked` is what `~hpcfl.options.definition.asked_for` returns.
    `rounds` is the largest number of rounds, warm-up included: space for all is allocated now if it
    is not much, and space for `at_end`, what of the environment is found out when the run ends
    (with what stands for it until then, see `record_end`). `training` and
    `device_training` name figures of each round, and of each round and device; `partition` has the
    shape (N, classes). With `failures` it is kept which devices failed and how long it took to go
    on without them, with `ranks`, their number, what the ranks did with their time, and with
    `helpers` what each of so many helpers spent, and with `committee` who was in it. A file that
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
        device_training: Sequence[str] = (),
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
        self._at_end = dict(at_end or {})
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
        some = failures, ranks, helpers, committee
        self._allocated = _first_rounds(0, rounds, _bytes_of_round(len(phases), devices, *some))
        needed = predicted_bytes(len(phases), devices, self._allocated, *some)
        with self._creating(needed, keep=True) as file:
            _fill_attributes(file, header)
            _fill_attributes(file.create_group(schema.CONFIG), config)
            facts = {**environment, schema.LOCKED: hdf5.locked(Path(file.filename))}
            _fill_attributes(file.create_group(schema.ENVIRONMENT), facts)
            _begin(file, schema.ENVIRONMENT, self._at_end)
            file.create_dataset(schema.PHASES, data=list(phases), dtype=h5py.string_dtype())
            sizes = self._allocated, len(phases), devices
            _allocate(file.create_group(schema.ROUNDS), _datasets(*some), *sizes, ranks, helpers)
            if partition is not None:
                table = file.create_dataset(schema.PARTITION, data=np.asarray(partition, np.int64))
                table.dims[0].label, table.dims[1].label = "device", "class"
            if training or device_training:
                learned = [StoredDataset(name, np.float64, (), "") for name in training]
                learned += [
                    StoredDataset(name, np.float64, ("device",), "") for name in device_training
                ]
                _allocate(file.create_group(schema.TRAINING), learned, *sizes)
        self._open(schema.ENVIRONMENT, (*training, *device_training))

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        command: str,
        environment: Mapping[str, Any],
        rounds: int,
        kept: int | None = None,
        config: Mapping[str, Any] | None = None,
        at_end: Mapping[str, Any] | None = None,
        failures: bool = False,
        ranks: int = 0,
    ) -> ResultsWriter:
        """Open the file of a run that did not come to its end, to go on behind its finished rounds.

        Of these the first `kept` stay, by default all.

        What the file says of run and machine stays, but for the values of `config`. The launch that
        goes on is described in a group of its own, ``/resumed/1`` and so on; `rounds` counts those
        that are finished too. The file is replaced as a whole. It is a UsageError if it cannot be
        opened or replaced, or another process is writing it.
        """
        self = cls.__new__(cls)
        # The file itself, where the path is a link to it: its folder is where it is replaced.
        self.path = Path(os.path.realpath(path))
        self._rounds = rounds
        self._at_end = dict(at_end or {})
        try:
            # The lock is that of a writer which is at work; it ends with the writer's process.
            old = _opened(self.path, "r+")
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"cannot continue {self.path} ({hdf5.reason(error)}): see that it can be written to"
            ) from error
        with old:
            self.run_id = str(old.attrs["run_id"])
            with suppress(OSError):  # of a process that was killed while it wrote it
                self._draft.unlink(missing_ok=True)
            before = old[schema.ROUNDS]
            finished = int(np.logical_and.accumulate(before[schema.MARKS][()]).sum())
            self.written = finished if kept is None else min(kept, finished)
            _, phases, devices = before["bytes_up"].shape
            launch = f"{schema.RESUMED}/{len(old.get(schema.RESUMED, ())) + 1}"
            failures = failures or schema.FAILURES[0].name in before
            of_ranks, of_helpers = (
                before[some[0].name].shape[-1] if some[0].name in before else 0
                for some in (schema.RANK_TIMES, schema.HELPERS)
            )
            ranks, helpers = max(ranks, of_ranks), of_helpers
            committee = schema.COMMITTEE[0].name in before
            some = failures, ranks, helpers, committee
            size = _bytes_of_round(phases, devices, *some)
            self._allocated = _first_rounds(self.written, rounds, size)
            needed = predicted_bytes(phases, devices, self._allocated, *some)
            with self._creating(needed) as file:
                _copy(old, file, self._allocated, self.written, ranks)
                _fill_attributes(file[schema.CONFIG], config or {})
                for name in schema.OF_THE_RUN & self._at_end.keys():
                    file[schema.ENVIRONMENT].attrs[name] = _fixed("")
                told = {"command": command, "started": _now(), schema.FIRST_ROUND: self.written}
                told |= {**environment, schema.LOCKED: hdf5.locked(Path(file.filename))}
                _fill_attributes(file.require_group(launch), told)
                _begin(file, launch, self._at_end)
                new = [dataset for dataset in _datasets(*some) if dataset.name not in before]
                sizes = self._allocated, phases, devices
                _allocate(file[schema.ROUNDS], new, *sizes, ranks, helpers)
                for dataset in new:
                    file[schema.ROUNDS][dataset.name][: self.written] = dataset.unknown
            self._open(launch, [*old.get(schema.TRAINING, ())])
        return self

    @contextmanager
    def _creating(self, needed_bytes: int, keep: bool = False) -> Iterator[Any]:
        """Yield a new file to be filled, which then takes its name with all its space.

        With `keep` it must not have the place of another one.
        """
        try:
            with outputs.replacing(self.path, self._draft, keep=keep) as draft:
                with _opened(draft, "x") as file:
                    yield file
                _allocate_blocks(draft)
        except (OSError, RuntimeError) as error:
            why = hdf5.reason(error) + _room(self.path, needed_bytes)
            raise UsageError(
                f"cannot create {self.path} ({why}): make room, or choose another place with "
                "--output"
            ) from error

    def _open(self, launch: str, training: Sequence[str]) -> None:
        """Open the file that is there complete."""
        try:
            # Without a cache of chunks: it would hold rounds that are never looked at again.
            self._file = _opened(self.path, "r+", rdcc_nbytes=0)
        except (OSError, RuntimeError) as error:
            raise UsageError(f"cannot write to {self.path} ({hdf5.reason(error)})") from error
        # A node of HDF5's trees takes six times what it is accounted for.
        config = self._file.id.get_mdc_config()
        config.set_initial_size = True
        config.min_size = config.initial_size = config.max_size = _CACHE_BYTES
        self._file.id.set_mdc_config(config)
        self._launch = launch
        self._inode = _inode(self.path)
        group = self._file[schema.ROUNDS]
        known = (dataset.name for dataset in schema.KNOWN)
        self._datasets = {name: group[name] for name in known if name in group}
        self._finished = group[schema.MARKS]
        self._training = {name: self._file[schema.TRAINING][name] for name in training}

    def _grow(self) -> None:
        """Let a copy with space for twice as many rounds take the place of the file."""
        self._check_place()
        before, self._allocated = self._file, min(self._rounds, 2 * self._allocated)
        # As large as the file, and for each round that is added as much as it has for one.
        needed = self.path.stat().st_size * self._allocated // self.written
        try:
            with self._creating(needed) as file:
                _copy(before, file, self._allocated, self.written)
            before.close()
            self._open(self._launch, [*self._training])
        except UsageError as error:
            raise HpcflError(
                f"{error}; what there is, {formats.counted(self.written, 'round')}, is kept: "
                f"continue with {self._how_on}"
            ) from error

    def _check_place(self) -> None:
        if _inode(self.path) != self._inode:
            raise HpcflError(
                f"{self.path} was removed, moved or replaced while rounds were written to it: "
                "leave results alone until their run has ended"
            )

    @property
    def _how_on(self) -> str:
        command = "train" if self._training else "bench"
        return f"hpcfl {command} --resume {shlex.quote(str(self.path))}"

    def append(self, record: RoundRecord, training: Mapping[str, Any] | None = None) -> None:
        """Write one round and make it safe against the death of this process.

        `training` has a value, or an array of shape (N,), for each name given at the start.
        HpcflError says that the file system refuses the data, or that the file is no longer there.
        """
        values = {name: np.asarray(getattr(record, name)) for name in self._datasets}
        for dataset in schema.RANK_TIMES:
            if dataset.name in values:
                shape = self._datasets[dataset.name].shape[1:]
                values[dataset.name] = _of_ranks(values[dataset.name], shape)
        values |= {name: np.asarray(value) for name, value in (training or {}).items()}
        if self.written == self._allocated:
            self._grow()
        try:
            for name, dataset in (self._datasets | self._training).items():
                dataset[self.written] = values[name]
            # Two flushes: the mark must not reach the file before what it vouches for.
            self._file.flush()
            self._finished[self.written] = True
            self._file.flush()
        except (OSError, RuntimeError) as error:
            raise HpcflError(
                f"cannot write round {self.written} to {self.path} ({hdf5.reason(error)}): the "
                f"rounds before it are kept; make room, and continue with {self._how_on}"
            ) from error
        self.written += 1
        self._check_place()

    def mark_interrupted(self) -> None:
        """Set the status to ``interrupted`` now: the process was told to leave, and may be killed.

        May be called from another thread. How the run ends, if it does, replaces the status.
        """
        with suppress(OSError, RuntimeError, ValueError, KeyError):
            self._file.attrs.modify(schema.STATUS, np.array("interrupted", schema.STATUS_TYPE))
            self._file.flush()

    def record_end(self, values: Mapping[str, Any]) -> None:
        """Write what of the environment is found out when the run ends.

        By the names of `at_end`: numbers, arrays of them of the size that was planned, and text of
        at most 16 bytes. HpcflError says that the file system refuses the data.
        """
        try:
            for name, value in values.items():
                group = schema.ENVIRONMENT if name in schema.OF_THE_RUN else self._launch
                self._file[group].attrs.modify(name, _fixed(value))
        except (OSError, RuntimeError) as error:
            raise HpcflError(f"cannot finish {self.path} ({hdf5.reason(error)})") from error

    def close(self, status: str) -> None:
        """End the file: set its status and cut it to the rounds that are finished.

        A second call does nothing. HpcflError says that the file system refuses the data.
        """
        if not self._file:
            return
        try:
            # Fixed-length values of the same type are overwritten in place.
            self._file.attrs.modify(schema.FINISHED, np.array(_now(), schema.TIME_TYPE))
            self._file.attrs.modify(schema.STATUS, np.array(status, schema.STATUS_TYPE))
            self._file.close()
        except (OSError, RuntimeError) as error:
            raise HpcflError(f"cannot finish {self.path} ({hdf5.reason(error)})") from error
        # Another file that has the name by now is somebody else's.
        if self.written < self._allocated and _inode(self.path) == self._inode:
            self._trim()

    def _trim(self) -> None:
        # It only tidies up: readers go by the marks, so on a full disk the file stays as it is.
        with (
            suppress(OSError, RuntimeError),
            outputs.replacing(self.path, self._draft) as draft,
            _opened(self.path, "r") as whole,
            _opened(draft, "x") as file,
        ):
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


def predicted_bytes(
    phases: int,
    devices: int,
    rounds: int,
    failures: bool = False,
    ranks: int = 0,
    helpers: int = 0,
    committee: bool = False,
) -> int:
    """Return about how large the file of a run without training figures is, with so many rounds.

    Raw data, HDF5's index of chunks with one entry a round and dataset, and a flat amount for
    everything that does not grow with the rounds.
    """
    size = _bytes_of_round(phases, devices, failures, ranks, helpers, committee)
    return _HEADER_BYTES + round(rounds * size)


def _first_rounds(written: int, planned: int, bytes_of_round: float) -> int:
    """Return for how many rounds, in all, a file has space at first."""
    return min(planned, written + max(1, int(_FIRST_BYTES / bytes_of_round)))


def _bytes_of_round(
    phases: int, devices: int, failures: bool, ranks: int, helpers: int, committee: bool
) -> float:
    a_round = 0.0
    for dataset in _datasets(failures, ranks, helpers, committee):
        shape = dataset.shape(phases, devices, ranks, helpers)
        a_round += np.dtype(dataset.dtype).itemsize * math.prod(shape)
        a_round += _ENTRY_BYTES + _AXIS_BYTES * len(shape)
    return a_round


def check_room(path: Path, needed_bytes: int) -> None:
    """Refuse a file that its file system has no room for, by UsageError."""
    try:
        free = shutil.disk_usage(outputs.nearest_folder(path.parent)).free
    except OSError:
        return  # It is said when the file is created.
    if needed_bytes > free:
        raise UsageError(
            f"the results would take about {formats.size(needed_bytes)}, and {formats.size(free)} "
            f"are free for {path}: give fewer --rounds or --devices, or another --output"
        )


def _opened(path: Path, mode: str, **more: Any) -> Any:
    # The oldest file format has no checksums: a half-written attribute at the end of a run then
    # spoils nothing but itself.
    return hdf5.opened(path, mode, libver="earliest", **more)


def _datasets(
    failures: bool, ranks: int, helpers: int, committee: bool
) -> tuple[StoredDataset, ...]:
    """Return the datasets of the rounds, in the order in which they are created."""
    some = (
        *((failures, schema.FAILURES), (ranks, schema.RANK_TIMES)),
        *((helpers, schema.HELPERS), (committee, schema.COMMITTEE)),
    )
    more = (dataset for there, datasets in some if there for dataset in datasets)
    return (*schema.DATASETS, *more, schema.MARKED)


def _of_ranks(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the values of fewer ranks as those of more, of which nothing is known."""
    if not shape or values.shape[-1] >= shape[-1]:
        return values
    whole = np.full((*values.shape[:-1], shape[-1]), np.nan)
    whole[..., : values.shape[-1]] = values
    return whole


def _room(path: Path, needed_bytes: int) -> str:
    """Return what is needed and free at a place, if that may be what is wrong."""
    try:
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError:
        return ""
    if free_bytes > 2 * needed_bytes:
        return ""
    return f": about {formats.size(needed_bytes)} are needed, {formats.size(free_bytes)} are free"


def _inode(path: Path) -> tuple[int, int] | None:
    """Return which file has a name now; None if none has."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def _allocate_blocks(path: Path) -> None:
    """Let the file system allocate all blocks of a file, so that no later write needs room.

    File systems that write every block anew to another place (btrfs, ZFS) promise nothing. OSError
    says that there is not enough room.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


def _begin(file: Any, launch: str, at_end: Mapping[str, Any]) -> None:
    """Create the attributes that tell how run and launch ended, of fixed length."""
    file.attrs.create(schema.STATUS, np.bytes_("running"), dtype=schema.STATUS_TYPE)
    file.attrs.create(schema.FINISHED, np.bytes_(""), dtype=schema.TIME_TYPE)
    for name, value in at_end.items():
        file[launch].attrs.create(name, _fixed(value))


def _allocate(group: Any, datasets: Iterable[StoredDataset], rounds: int, *sizes: int) -> None:
    """Create datasets of all rounds, allocated, one round to a chunk."""
    for wanted in datasets:
        shape = wanted.shape(*sizes)
        labels = ("round", *wanted.axes)
        _create(group, wanted.name, (rounds, *shape), wanted.dtype, labels, wanted.unit)


def _create(
    group: Any,
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
    labels: Sequence[str],
    unit: str | None,
) -> Any:
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    dataset = group.create_dataset(
        name,
        shape=shape,
        maxshape=(None, *shape[1:]),
        chunks=(1, *shape[1:]),
        dtype=dtype,
        dcpl=early,
    )
    for axis, label in enumerate(labels):
        dataset.dims[axis].label = label
    if unit:
        dataset.attrs["unit"] = unit
    return dataset


def _copy(old: Any, new: Any, rounds: int, kept: int, ranks: int = 0) -> None:
    """Copy a results file to another one with space for `rounds`, of which the `kept` first are in.

    And with columns for so many ranks, if the old one has fewer.
    """
    for name, value in old.attrs.items():
        new.attrs.create(name, value, dtype=old.attrs.get_id(name).dtype)
    for name in old:
        if name not in (schema.ROUNDS, schema.TRAINING):
            old.copy(name, new)
            continue
        group = new.create_group(name)
        for data in old[name].values():
            labels = [dim.label for dim in data.dims]
            row = data.shape[1:]
            if labels[-1] == "rank":
                row = (*row[:-1], max(row[-1], ranks))
            unit, word = data.attrs.get("unit"), data.name.rpartition("/")[2]
            copy = _create(group, word, (rounds, *row), data.dtype, labels, unit)
            step = max(1, _AT_ONCE_BYTES // max(1, data.nbytes // max(1, len(data))))
            for start in range(0, kept, step):
                part = slice(start, min(start + step, kept))
                copy[part] = _of_ranks(data[part], row)


def _fill_attributes(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in schema.encode(values).items():
        target.attrs[name] = value


def _fixed(value: float | str | NDArray[np.float64]) -> NDArray[Any]:
    """Return a value of a type of fixed length, which is overwritten in place."""
    if isinstance(value, str):
        return np.array(value.encode(), schema.WORD_TYPE)
    return np.asarray(value, np.float64)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
