"""Writes the HDF5 file of a run, so that a killed run leaves all its finished rounds readable.

An HDF5 file breaks when a process dies while it rewrites the file's *metadata* (the trees and
headers that say where the data lie). So all metadata are written before the first round, under
another name: the file appears under its own name complete, every planned round allocated. After
that a round only overwrites raw data in place, and ``/rounds/finished`` tells which rounds count.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from hpcfl import __version__
from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.record import RoundRecord

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
)
_FINISHED = "finished"

_STATUS_TYPE = "S8"  # running, complete, failed
_TIME_TYPE = "S20"  # 2025-01-31T23:59:59Z
_WORD_TYPE = "S16"


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

    A context manager: leaving it closes the file, with status ``complete``, or ``failed`` if an
    exception is on its way out.

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
        draft = self._sibling("part")
        try:
            # The oldest file format has no checksums: a half-written attribute at the end of a
            # run then spoils nothing but itself.
            with h5py.File(draft, "x", libver="earliest", locking="best-effort") as file:
                _fill_attributes(file, header)
                file.attrs.create("status", np.bytes_("running"), dtype=_STATUS_TYPE)
                file.attrs.create("finished", np.bytes_(""), dtype=_TIME_TYPE)
                _fill_attributes(file.create_group("config"), config)
                group = file.create_group("environment")
                _fill_attributes(group, environment)
                for name, kind in self._at_end.items():
                    group.attrs.create(name, _fixed("" if kind is str else math.nan))
                file.create_dataset("phases", data=list(phases), dtype=h5py.string_dtype())
                _allocate(file.create_group("rounds"), rounds, len(phases), devices)
                if partition is not None:
                    table = file.create_dataset("partition", data=np.asarray(partition, np.int64))
                    table.dims[0].label, table.dims[1].label = "device", "class"
                if training or device_training:
                    group = file.create_group("training")
                    _allocate_training(group, rounds, training)
                    _allocate_training(group, rounds, device_training, devices)
            os.replace(draft, self.path)
            self._file = h5py.File(self.path, "r+", libver="earliest", locking="best-effort")
        except (OSError, RuntimeError) as error:
            draft.unlink(missing_ok=True)
            raise UsageError(
                f"cannot create {self.path} ({error}): choose another place with --output"
            ) from error
        group = self._file["rounds"]
        self._datasets = {name: group[name] for name, *_ in _DATASETS}
        self._finished = group[_FINISHED]
        self._training = {
            name: self._file["training"][name] for name in (*training, *device_training)
        }

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
            If the file system refuses the data.
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
                f"cannot write round {self.written} to {self.path} ({error})"
            ) from error
        self.written += 1

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
                self._file["environment"].attrs.modify(name, value)
        except (OSError, RuntimeError) as error:
            raise HpcflError(f"cannot finish {self.path} ({error})") from error

    def close(self, status: str) -> None:
        """End the file: set its status and cut it to the rounds that are finished.

        A second call does nothing.

        Parameters
        ----------
        status : {"complete", "failed"}
            How the run ended.

        Raises
        ------
        ValueError
            If the status is another one.
        HpcflError
            If the file system refuses the data.
        """
        if status not in ("complete", "failed"):
            raise ValueError(f"a run ends complete or failed, not {status!r}")
        if not self._file:
            return
        try:
            # Fixed-length values of the same type are overwritten in place.
            self._file.attrs.modify("finished", np.array(_now(), _TIME_TYPE))
            self._file.attrs.modify("status", np.array(status, _STATUS_TYPE))
            self._file.close()
        except (OSError, RuntimeError) as error:
            raise HpcflError(f"cannot finish {self.path} ({error})") from error
        if self.written < self._rounds:
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
        self.close("complete" if kind is None else "failed")


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


def _allocate(group: Any, rounds: int, phases: int, devices: int) -> None:
    """Create the datasets of all rounds, allocated, one round to a chunk."""
    sizes = {"phase": phases, "device": devices, "device or server": devices + 1}
    for name, dtype, unit, labels in (*_DATASETS, (_FINISHED, np.bool_, "1", ())):
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
    for name, value in source.attrs.items():
        target.attrs.create(name, value, dtype=source.attrs.get_id(name).dtype)


def _fill_attributes(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        target.attrs[name] = _attribute(value)


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
