"""Writes the HDF5 file of a run, so that a killed run leaves all its finished rounds readable.

An HDF5 file breaks when a process dies while it rewrites the file's *metadata* (the trees and
headers that say where the data lie). So all metadata are written before the first round, under
another name: the file appears under its own name complete, every planned round allocated. After
that a round only overwrites raw data in place, and ``/rounds/finished`` tells which rounds count.

A full disk breaks a file in the same way. So the draft's blocks are allocated by the file system as
well, and what finds no room is found before the first round.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from hpcfl import __version__
from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.record import NOT_LOST, RoundRecord
from hpcfl.system.interruption import Left

SCHEMA = "hpcfl/1"

_TRAFFIC = ("phase", "device")
_TIMES = ("phase", "device or server")

# Name, type, unit and labels of the axes that follow the rounds.
_DATASETS: tuple[tuple[str, type, str, tuple[str, ...]], ...] = (
    ("bytes_up", np.uint64, "bytes", _TRAFFIC),
    ("bytes_down", np.uint64, "bytes", _TRAFFIC),
    ("messages_up", np.uint64, "1", _TRAFFIC),
    ("messages_down", np.uint64, "1", _TRAFFIC),
    ("wall_seconds", np.float64, "s", _TIMES),
    ("cpu_seconds", np.float64, "s", _TIMES),
    ("round_seconds", np.float64, "s", ()),
    ("survived", np.bool_, "1", ("device",)),
    ("validated", np.bool_, "1", ()),
    ("warmup", np.bool_, "1", ()),
    ("promise_failure", np.float64, "1", ()),
)
# Of runs that go on when ranks die.
_LOSSES: tuple[tuple[str, type, str, tuple[str, ...]], ...] = (
    ("lost_phase", np.int16, "1", ("device",)),
    ("detect_seconds", np.float64, "s", ()),
    ("recover_seconds", np.float64, "s", ()),
)
_FINISHED = "finished"

STATUSES = ("running", "complete", "failed", "interrupted")
_STATUS_TYPE = "S11"
_TIME_TYPE = "S20"  # 2025-01-31T23:59:59Z
_WORD_TYPE = "S16"
# Of what is found out when a launch ends, this is the run's: the others describe the machine.
_OF_THE_RUN = {"stop_reason"}

# HDF5's index of chunks is a tree of nodes of at most so many entries. It grows at its right end,
# where a node is split so that nine tenths stay (HDF5 file format specification, section III.A.1).
_NODE_ENTRIES = 64
_NODE_FILL = 0.9
_HEADER_BYTES = 36_000
# The nodes that a round needs, and some: those of rounds before would only take memory.
_CACHE_BYTES = 1 << 18


def default_path(folder: str | os.PathLike[str], protocol: str, devices: int, dim: int) -> Path:
    """Return a new file name for a run, one that sorts by protocol, size and time.

    Parameters
    ----------
    folder : path
        Folder of the results; it need not exist.
    protocol : str
        Name of the protocol.
    devices, dim : int
        Number of devices N and of parameters d.

    Returns
    -------
    Path
        ``folder/<protocol>-<N>x<d>-<UTC time>-<8 random hex digits>.h5``.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(folder) / f"{protocol}-{devices}x{dim}-{now}-{secrets.token_hex(4)}.h5"


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out, before anything is measured, whether results can be written.

    Parameters
    ----------
    path : path
        A file (a name that ends in ``.h5`` or ``.hdf5``) or else a folder. A folder that does
        not exist is created, with its parents.

    Raises
    ------
    UsageError
        If the folder cannot be created or written to, or the file exists already: results are
        never overwritten.
    """
    target = Path(path)
    if target.suffix not in (".h5", ".hdf5"):
        _check_folder(target, target)
        return
    _check_new(target)


def _check_new(file: Path) -> None:
    if file.exists():
        raise UsageError(
            f"{file} exists already and results are never overwritten: "
            "remove it or choose another name with --output"
        )
    _check_folder(file.parent, file)


def _check_folder(folder: Path, wanted: Path) -> None:
    # Tried rather than asked: permission bits say nothing of quotas or read-only file systems.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write results to {wanted} ({error.strerror or error}): "
            "choose another place with --output"
        ) from error


class ResultsWriter:
    """The results file of one run, open for writing.

    A context manager: leaving it closes the file, with status ``complete``; ``interrupted`` if
    `Left` is on its way out, ``failed`` if another exception is.

    Parameters
    ----------
    path : path
        The file to create; its folder is created when absent.
    protocol : str
        Name of the protocol.
    command : str
        The command line that was typed.
    config : dict
        Every option with its value. Values of type str, int, float and bool keep their type;
        None becomes ``"none"``; lists, tuples and dicts become JSON text.
    environment : dict
        What was found out about machine and software, stored in the same way.
    phases : sequence of str
        Names of the P phases, in order.
    devices : int
        Number of devices N.
    rounds : int
        Largest number of rounds, warm-up included. Space for all of them is allocated now.
    at_end : mapping of str to type, optional
        What of the environment is found out when the run ends, see `record_end`: ``float`` or
        ``str``. Space for it is allocated now, and holds NaN or "" until then.
    training : sequence of str, optional
        Names of further figures of each round, kept under ``/training``; a name ends in its unit
        where it has one.
    device_training : sequence of str, optional
        Names of further figures of each round and device, kept there too.
    partition : array_like of int, shape (N, classes), optional
        Number of samples of every device and class, kept under ``/partition``.
    losses : bool
        Keep which devices were lost, and how long it took to go on without them.

    Attributes
    ----------
    path : Path
        The file.
    run_id : str
        Random identity of the run, 32 hex digits.
    written : int
        Number of rounds that are finished and in the file.

    Raises
    ------
    UsageError
        If the file cannot be created, or exists already.
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
        at_end: Mapping[str, type] | None = None,
        training: Sequence[str] = (),
        device_training: Sequence[str] = (),
        partition: Any | None = None,
        losses: bool = False,
    ) -> None:
        if rounds < 1 or devices < 1 or not phases:
            raise ValueError("a results file needs a round, a device and a phase at least")
        self.path = Path(path)
        self.run_id = uuid.uuid4().hex
        self.written = 0
        self._rounds = rounds
        self._at_end = dict(at_end or {})
        _check_new(self.path)

        header = {
            "schema": SCHEMA,
            "hpcfl_version": __version__,
            "run_id": self.run_id,
            "protocol": protocol,
            "command": command,
            "started": _now(),
        }
        needed = predicted_bytes(len(phases), devices, rounds, losses)
        with self._creating(needed) as file:
            _fill_attributes(file, header)
            file.attrs.create("status", np.bytes_("running"), dtype=_STATUS_TYPE)
            file.attrs.create("finished", np.bytes_(""), dtype=_TIME_TYPE)
            _fill_attributes(file.create_group("config"), config)
            group = file.create_group("environment")
            _fill_attributes(group, environment)
            _reserve(group, self._at_end)
            file.create_dataset("phases", data=list(phases), dtype=h5py.string_dtype())
            _allocate(file.create_group("rounds"), rounds, len(phases), devices, losses)
            if partition is not None:
                table = file.create_dataset("partition", data=np.asarray(partition, np.int64))
                table.dims[0].label, table.dims[1].label = "device", "class"
            if training or device_training:
                group = file.create_group("training")
                _allocate_training(group, rounds, training)
                _allocate_training(group, rounds, device_training, devices)
        self._open("environment", (*training, *device_training))

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        command: str,
        environment: Mapping[str, Any],
        rounds: int,
        at_end: Mapping[str, type] | None = None,
        losses: bool = False,
    ) -> ResultsWriter:
        """Open the file of a run that did not come to its end, to go on with it.

        What the file says of run and machine stays. The launch that goes on is described in a group
        of its own, ``/resumed/1`` and so on. The file is replaced as a whole.

        Parameters
        ----------
        path : path
            The file; of a run without training figures.
        command, environment, rounds, at_end, losses
            As for the class, of the launch that goes on; `rounds` counts those that are finished.

        Returns
        -------
        ResultsWriter
            Behind the rounds that are finished.

        Raises
        ------
        UsageError
            If the file cannot be opened or replaced, or another process is writing it.
        """
        self = cls.__new__(cls)
        self.path = Path(path)
        self._rounds = rounds
        self._at_end = dict(at_end or {})
        try:
            # The lock is that of a writer which is at work; it ends with the writer's process.
            old = h5py.File(self.path, "r+", libver="earliest", locking="best-effort")
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"cannot go on with {self.path} ({_reason(error)}): another process may still be "
                "writing it, or it may not be written to"
            ) from error
        with old:
            self.run_id = str(old.attrs["run_id"])
            for purpose in ("part", "cut", "trim"):
                # Of a process that was killed while it wrote them.
                with suppress(OSError):
                    self._sibling(purpose).unlink(missing_ok=True)
            marks = old["rounds"][_FINISHED][()]
            self.written = int(np.logical_and.accumulate(marks).sum())
            _, phases, devices = old["rounds/bytes_up"].shape
            launch = f"resumed/{len(old.get('resumed', ())) + 1}"
            losses = losses or _LOSSES[0][0] in old["rounds"]
            with self._creating(predicted_bytes(phases, devices, rounds, losses)) as file:
                for name in ("config", "environment", "phases", "resumed"):
                    if name in old:
                        old.copy(name, file)
                _copy_attributes(old, file, without=("status", "finished"))
                file.attrs.create("status", np.bytes_("running"), dtype=_STATUS_TYPE)
                file.attrs.create("finished", np.bytes_(""), dtype=_TIME_TYPE)
                for name in _OF_THE_RUN & self._at_end.keys():
                    file["environment"].attrs[name] = _fixed("")
                group = file.require_group(launch)
                told = {"command": command, "started": _now(), "first_round": self.written}
                _fill_attributes(group, told | dict(environment))
                _reserve(group, self._at_end)
                _allocate(file.create_group("rounds"), rounds, phases, devices, losses)
                before = {name: old["rounds"][name][: self.written] for name in old["rounds"]}
                # Where ranks could not be lost, none was; an earlier version checked no promises.
                unknown = ("promise_failure", "detect_seconds", "recover_seconds")
                nothing = {"lost_phase": NOT_LOST} | dict.fromkeys(unknown, nan)
                for name, dataset in file["rounds"].items():
                    dataset[: self.written] = (nothing | before)[name]
            self._open(launch, ())
        return self

    @contextmanager
    def _creating(self, needed_bytes: int) -> Iterator[Any]:
        """Yield a new file to be filled, which then takes its name with all its space."""
        draft = self._sibling("part")
        try:
            # The oldest file format has no checksums: a half-written attribute at the end of a
            # run then spoils nothing but itself.
            with h5py.File(draft, "x", libver="earliest", locking="best-effort") as file:
                yield file
            _allocate_blocks(draft)
            os.replace(draft, self.path)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise UsageError(
                f"cannot create {self.path} ({_reason(error)}{_room(self.path, needed_bytes)}): "
                "make room, or choose another place with --output"
            ) from error

    def _open(self, launch: str, training: Sequence[str]) -> None:
        """Open the file that is there complete."""
        try:
            # Without a cache of chunks: it would hold rounds that are never looked at again.
            self._file = h5py.File(
                self.path, "r+", libver="earliest", locking="best-effort", rdcc_nbytes=0
            )
        except (OSError, RuntimeError) as error:
            raise UsageError(f"cannot write to {self.path} ({_reason(error)})") from error
        _limit_cache(self._file)
        self._launch = launch
        self._inode = _inode(self.path)
        group = self._file["rounds"]
        known = (*_DATASETS, *_LOSSES)
        self._datasets = {name: group[name] for name, *_ in known if name in group}
        self._finished = group[_FINISHED]
        self._training = {name: self._file["training"][name] for name in training}

    def append(self, record: RoundRecord, training: Mapping[str, Any] | None = None) -> None:
        """Write one round and make it safe against the death of this process.

        Parameters
        ----------
        record : RoundRecord
            The round; its arrays must have the shapes given by phases and devices.
        training : mapping of str to float or ndarray of shape (N,), optional
            The round's values under `/training`, one for each name given at the start.

        Raises
        ------
        ValueError
            If the file is closed, all planned rounds are written, a shape does not fit, or other
            values than the planned ones are given.
        HpcflError
            If the file system refuses the data, or the file is no longer there.
        """
        if not self._file:
            raise ValueError("the results file is closed")
        if self.written == self._rounds:
            raise ValueError(f"all {self._rounds} planned rounds are written")
        learned = dict(training or {})
        if learned.keys() != self._training.keys():
            raise ValueError(f"{sorted(self._training)} were planned, not {sorted(learned)}")
        values = {name: np.asarray(getattr(record, name)) for name in self._datasets}
        values |= {name: np.asarray(value) for name, value in learned.items()}
        datasets = self._datasets | self._training
        for name, dataset in datasets.items():
            # h5py would broadcast a smaller array without a word.
            if values[name].shape != dataset.shape[1:]:
                raise ValueError(
                    f"{name} has the shape {values[name].shape}, not {dataset.shape[1:]}"
                )
        try:
            for name, dataset in datasets.items():
                dataset[self.written] = values[name]
            # Two flushes: the mark must not reach the file before what it vouches for.
            self._file.flush()
            self._finished[self.written] = True
            self._file.flush()
        except (OSError, RuntimeError) as error:
            raise HpcflError(
                f"cannot write round {self.written} to {self.path} ({_reason(error)}): the rounds "
                "before it are kept; make room, and go on with --resume"
            ) from error
        self.written += 1
        if _inode(self.path) != self._inode:
            raise HpcflError(
                f"{self.path} was removed, moved or replaced while rounds were written to it: "
                "leave results alone until their run has ended"
            )

    def mark_interrupted(self) -> None:
        """Set the status to ``interrupted`` now: the process was told to leave, and may be killed.

        May be called from another thread. How the run ends, if it does, replaces the status.
        """
        with suppress(OSError, RuntimeError, ValueError, KeyError):
            self._file.attrs.modify("status", np.array("interrupted", _STATUS_TYPE))
            self._file.flush()

    def record_end(self, values: Mapping[str, float | str]) -> None:
        """Write what of the environment is found out when the run ends.

        Parameters
        ----------
        values : mapping of str to float or str
            A value for each name of `at_end`; text of at most 16 bytes.

        Raises
        ------
        ValueError
            If the file is closed, other names are given, or a text is too long.
        HpcflError
            If the file system refuses the data.
        """
        if not self._file:
            raise ValueError("the results file is closed")
        if values.keys() != self._at_end.keys():
            raise ValueError(f"{sorted(self._at_end)} were planned, not {sorted(values)}")
        fixed = {name: _fixed(value) for name, value in values.items()}
        try:
            for name, value in fixed.items():
                group = "environment" if name in _OF_THE_RUN else self._launch
                self._file[group].attrs.modify(name, value)
        except (OSError, RuntimeError) as error:
            raise HpcflError(f"cannot finish {self.path} ({_reason(error)})") from error

    def close(self, status: str) -> None:
        """End the file: set its status and cut it to the rounds that are finished.

        A second call does nothing.

        Parameters
        ----------
        status : {"complete", "failed", "interrupted"}
            How the run ended.

        Raises
        ------
        ValueError
            If the status is another one.
        HpcflError
            If the file system refuses the data.
        """
        if status not in STATUSES[1:]:
            raise ValueError(f"a run ends complete or failed or interrupted, not {status!r}")
        if not self._file:
            return
        try:
            # Fixed-length values of the same type are overwritten in place.
            self._file.attrs.modify("finished", np.array(_now(), _TIME_TYPE))
            self._file.attrs.modify("status", np.array(status, _STATUS_TYPE))
            self._file.close()
        except (OSError, RuntimeError) as error:
            raise HpcflError(f"cannot finish {self.path} ({_reason(error)})") from error
        # Another file that has the name by now is somebody else's.
        if self.written < self._rounds and _inode(self.path) == self._inode:
            self._trim()

    def _trim(self) -> None:
        # Cutting a dataset rewrites metadata, so it is done on a copy that then takes the file's
        # name at once. It only tidies up: readers go by the marks, so on a full disk the file
        # stays as it is.
        cut, copy = self._sibling("cut"), self._sibling("trim")
        try:
            shutil.copyfile(self.path, cut)
            with h5py.File(cut, "r+", libver="earliest", locking="best-effort") as file:
                for group in ("rounds", "training"):
                    for dataset in file.get(group, {}).values():
                        dataset.resize(self.written, axis=0)
                # HDF5 keeps the space of what was cut off within the file, but does not copy it.
                with h5py.File(copy, "x", libver="earliest", locking="best-effort") as packed:
                    _copy_all(file, packed)
            os.replace(copy, self.path)
        except (OSError, RuntimeError):
            with suppress(OSError):
                copy.unlink(missing_ok=True)
        finally:
            with suppress(OSError):
                cut.unlink(missing_ok=True)

    def _sibling(self, purpose: str) -> Path:
        # Hidden and without .h5, so that nobody takes it for results.
        return self.path.with_name(f".{self.path.name}.{self.run_id[:8]}.{purpose}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close("complete")
            return
        # What goes wrong with a file that is given up is not what has to be told.
        with suppress(HpcflError):
            self.close("interrupted" if isinstance(error, Left) else "failed")


def predicted_bytes(phases: int, devices: int, rounds: int, losses: bool = False) -> int:
    """Return about how large the file of a run without training figures is, all rounds allocated.

    Raw data, HDF5's index of chunks with one entry a round and dataset, and a flat amount for
    everything that does not grow with the rounds.

    Parameters
    ----------
    phases, devices, rounds : int
        Numbers P, N and R, warm-up included.
    losses : bool
        Whether the run can go on when ranks die, and records whom it lost.
    """
    sizes = {"phase": phases, "device": devices, "device or server": devices + 1}
    a_round = 0.0
    datasets = (*_DATASETS, *_LOSSES) if losses else _DATASETS
    for _, dtype, _, labels in (*datasets, (_FINISHED, np.bool_, "1", ())):
        a_round += np.dtype(dtype).itemsize * math.prod(sizes[label] for label in labels)
        # A key holds the chunk's size, a mask, and an offset in each dimension and one more.
        key_bytes = 8 + 8 * (len(labels) + 2)
        node_bytes = 24 + _NODE_ENTRIES * 8 + (_NODE_ENTRIES + 1) * key_bytes
        entries = _NODE_ENTRIES * _NODE_FILL
        # Leaves, the nodes above them, and so on.
        a_round += node_bytes / (entries - 1)
    return _HEADER_BYTES + round(rounds * a_round)


def stored(values: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return options, or facts, as the file of a run has them."""
    return {name: _attribute(value) for name, value in values.items()}


def _reason(error: BaseException) -> str:
    """Return what the system says is wrong, without HDF5's account of where."""
    number = getattr(error, "errno", None)
    if not number:
        # HDF5 hands some errors on in words alone.
        found = re.search(r"errno = (\d+)", str(error))
        number = int(found[1]) if found else None
    return os.strerror(number) if number else " ".join(str(error).split())


def _room(path: Path, needed_bytes: int) -> str:
    """Return what is needed and free at a place, if that may be what is wrong."""
    try:
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError:
        return ""
    if free_bytes > 2 * needed_bytes:
        return ""
    return f": about {needed_bytes / 1e6:.1f} MB are needed, {free_bytes / 1e6:.1f} MB are free"


def _inode(path: Path) -> tuple[int, int] | None:
    """Return which file has a name now; None if none has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _allocate_blocks(path: Path) -> None:
    """Let the file system allocate all blocks of a file, so that no later write needs room.

    File systems that write every block anew to another place (btrfs, ZFS) promise nothing.

    Raises
    ------
    OSError
        If there is not enough room.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


def _limit_cache(file: Any) -> None:
    """Let HDF5 keep few nodes of its trees; a node takes six times what it is accounted for."""
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.min_size = config.initial_size = config.max_size = _CACHE_BYTES
    file.id.set_mdc_config(config)


def _reserve(group: Any, at_end: Mapping[str, type]) -> None:
    """Create the attributes that are written when a launch ends."""
    for name, kind in at_end.items():
        group.attrs.create(name, _fixed("" if kind is str else math.nan))


def _allocate_training(
    group: Any, rounds: int, names: Sequence[str], devices: int | None = None
) -> None:
    """Create a dataset of one number a round, or a round and device, for each name, allocated."""
    tail = () if devices is None else (devices,)
    for name in names:
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        dataset = group.create_dataset(
            name,
            shape=(rounds, *tail),
            maxshape=(None, *tail),
            chunks=(1, *tail),
            dtype=np.float64,
            dcpl=early,
        )
        for axis, label in zip(range(1 + len(tail)), ("round", "device"), strict=False):
            dataset.dims[axis].label = label


def _allocate(group: Any, rounds: int, phases: int, devices: int, losses: bool) -> None:
    """Create the datasets of all rounds, allocated, one round to a chunk."""
    sizes = {"phase": phases, "device": devices, "device or server": devices + 1}
    wanted = (*_DATASETS, *(_LOSSES if losses else ()), (_FINISHED, np.bool_, "1", ()))
    for name, dtype, unit, labels in wanted:
        tail = tuple(sizes[label] for label in labels)
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        dataset = group.create_dataset(
            name,
            shape=(rounds, *tail),
            maxshape=(None, *tail),
            chunks=(1, *tail),
            dtype=dtype,
            dcpl=early,
        )
        dataset.attrs["unit"] = unit
        for axis, label in enumerate(("round", *labels)):
            dataset.dims[axis].label = label


def _copy_all(source: Any, target: Any) -> None:
    """Copy everything in a file to a new one."""
    for name in source:
        source.copy(name, target)
    _copy_attributes(source, target)


def _copy_attributes(source: Any, target: Any, without: Sequence[str] = ()) -> None:
    for name, value in source.attrs.items():
        if name not in without:
            target.attrs.create(name, value, dtype=source.attrs.get_id(name).dtype)


def _fill_attributes(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in stored(values).items():
        target.attrs[name] = value


def _fixed(value: float | str) -> Any:
    """Return a value of a type of fixed length, which is overwritten in place."""
    if not isinstance(value, str):
        return np.float64(value)
    if len(value.encode()) > np.dtype(_WORD_TYPE).itemsize:
        raise ValueError(f"{value!r} is longer than {_WORD_TYPE[1:]} bytes")
    return np.array(value.encode(), _WORD_TYPE)


def _attribute(value: Any) -> str | int | float | bool:
    """Return a value in the form in which it is stored as an attribute."""
    if value is None:
        return "none"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        # Some MPI libraries end their version text with a NUL, which HDF5 does not store.
        return value.replace("\0", "")
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=_json_default)
    return str(value)


def _json_default(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
