"""Reads the HDF5 files of runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.writer import SCHEMA

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Run:
    """One run: what was asked for, where it ran, and every finished round.

    ``R`` is the number of finished rounds, ``P`` of phases, ``N`` of devices.

    Attributes
    ----------
    path : Path
        The file.
    status : str
        ``complete``, ``failed``, or ``running``: not ended yet, or killed.
    protocol, command : str
        Name of the protocol, and the command line.
    started : str
        ISO 8601 time, UTC.
    finished : str or None
        The same, None while the run has not ended.
    run_id : str
        Random identity of the run.
    phases : list of str
        Names of the phases, in order.
    config, environment : dict
        Options and environment as stored: str, int, float or bool; ``"none"`` for an option
        without a value; JSON text for lists and dicts.
    bytes_up, bytes_down, messages_up, messages_down : ndarray of uint64, shape (R, P, N)
        What each device sent and received.
    wall_seconds, cpu_seconds : ndarray of float64, shape (R, P, N + 1)
        Seconds of each device; the server is last.
    round_seconds : ndarray of float64, shape (R,)
        Seconds of the whole round, the slowest rank's.
    survived : ndarray of bool, shape (R, N)
        Which devices are part of the aggregate.
    validated, warmup : ndarray of bool, shape (R,)
        Which rounds decoded to the right sum, and which only warmed up.
    training : dict of str to ndarray of float64, shape (R,) or (R, N)
        Figures of training, of the rounds or of the rounds and devices; empty where nothing was
        trained.
    partition : ndarray of int64, shape (N, classes), or None
        Number of samples of every device and class, where something was trained.
    """

    path: Path
    status: str
    protocol: str
    command: str
    started: str
    finished: str | None
    run_id: str
    phases: list[str]
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
    training: dict[str, NDArray[np.float64]]
    partition: NDArray[np.int64] | None = None

    @property
    def rounds(self) -> int:
        """Number of finished rounds, warm-up included."""
        return len(self.warmup)

    @property
    def devices(self) -> int:
        """Number of devices N."""
        return self.survived.shape[1]

    @property
    def dim(self) -> int:
        """Number of parameters d, from the options.

        Raises
        ------
        HpcflError
            If the file does not tell.
        """
        if not isinstance(self.config.get("dim"), int):
            raise HpcflError(f"{self.path} does not record the option dim")
        return int(self.config["dim"])

    def link(self, **asked: float | None) -> LinkModel:
        """Return the link model: as asked for, else as stored with the run, else the default.

        Parameters
        ----------
        **asked : float or None
            Fields of :class:`~hpcfl.results.linkmodel.LinkModel`; None where nothing is asked.

        Raises
        ------
        UsageError
            If a value is out of range.
        """
        values = {}
        for field in dataclasses.fields(LinkModel):
            value = asked.get(field.name)
            value = self.config.get(field.name) if value is None else value
            if isinstance(value, int | float):
                values[field.name] = float(value)
        return LinkModel(**values)

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rounds count, the valid ones after warm-up: ndarray of bool, shape (R,)."""
        return self.validated & ~self.warmup


_ARRAYS = (
    "bytes_up",
    "bytes_down",
    "messages_up",
    "messages_down",
    "wall_seconds",
    "cpu_seconds",
    "round_seconds",
    "survived",
    "validated",
    "warmup",
)


def load(path: str | os.PathLike[str]) -> Run:
    """Read one run.

    A run that another process is still writing can be read too: it shows the rounds finished so
    far.

    Parameters
    ----------
    path : path
        A results file.

    Returns
    -------
    Run
        The run, with its finished rounds.

    Raises
    ------
    HpcflError
        If there is no such file, it is no results file of hpcfl, it follows another major
        version of the schema, or it is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise HpcflError(f"there is no file {path}")
    try:
        # Without a lock: the writer holds one, and what it does is safe to look at.
        file = h5py.File(path, "r", locking=False)
    except PermissionError as error:
        raise HpcflError(f"{path} may not be read: permission denied") from error
    except OSError as error:
        raise HpcflError(f"{path} is damaged or is not an HDF5 file ({error})") from error
    with file:
        _check_schema(file, path)
        try:
            return _read(file, path)
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise HpcflError(f"{path} is damaged: its contents do not follow {SCHEMA}") from error


def _check_schema(file: Any, path: Path) -> None:
    schema = _plain(file.attrs.get("schema", ""))
    family, _, version = str(schema).partition("/")
    if family != "hpcfl" or not version:
        raise HpcflError(f"{path} is no results file of hpcfl")
    # A minor version may add to the file, so it can be read all the same.
    if version.partition(".")[0] != SCHEMA.partition("/")[2]:
        raise HpcflError(
            f"{path} follows the schema {schema} and this version of hpcfl reads {SCHEMA}: "
            "use the version of hpcfl that wrote it"
        )


def _read(file: Any, path: Path) -> Run:
    rounds = file["rounds"]
    finished = int(np.logical_and.accumulate(_array(rounds, "finished")).sum())
    arrays = {name: _array(rounds, name)[:finished] for name in _ARRAYS}
    phases = [name.decode() for name in _array(file, "phases")]
    devices = arrays["survived"].shape[1]
    for name in _ARRAYS[:4]:
        _check_shape(name, arrays[name].shape, (finished, len(phases), devices))
    for name in ("wall_seconds", "cpu_seconds"):
        _check_shape(name, arrays[name].shape, (finished, len(phases), devices + 1))
    for name in ("round_seconds", "validated", "warmup"):
        _check_shape(name, arrays[name].shape, (finished,))
    root = _attributes(file)
    return Run(
        path=path,
        status=root["status"],
        protocol=root["protocol"],
        command=root["command"],
        started=root["started"],
        finished=root["finished"] or None,
        run_id=root["run_id"],
        phases=phases,
        config=_attributes(file["config"]),
        environment=_attributes(file["environment"]),
        training={name: dataset[:finished] for name, dataset in file.get("training", {}).items()},
        partition=file["partition"][()] if "partition" in file else None,
        **arrays,
    )


def _array(group: Any, name: str) -> NDArray[Any]:
    """Return a whole dataset; h5py's own way to it takes twice as long, which many files feel."""
    dataset = h5py.h5d.open(group.id, name.encode())
    found = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, found)
    return found


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"{name} has the shape {shape}, not {expected}")


def _attributes(group: Any) -> dict[str, Any]:
    # In one pass: h5py's own mapping finds every attribute by its name, and then once more.
    found: dict[str, Any] = {}

    def take(name: bytes, *_: Any) -> None:
        attribute = h5py.h5a.open(group.id, name)
        value = np.empty(attribute.shape, attribute.dtype)
        attribute.read(value)
        found[name.decode()] = _plain(value[()])

    h5py.h5a.iterate(group.id, take, index_type=h5py.h5.INDEX_NAME)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def find(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the results files that a list of files and folders stands for.

    Parameters
    ----------
    paths : path or iterable of paths
        Files are taken as they are; a folder stands for the ``*.h5`` files in it, sorted by
        name.

    Returns
    -------
    list of Path
        The files in the order given, each once.

    Raises
    ------
    UsageError
        If a path does not exist, or there is no file at all.
    """
    asked = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(p) for p in paths]
    files: list[Path] = []
    for path in asked:
        if path.is_dir():
            files += sorted(file for file in path.glob("*.h5") if file.is_file())
        elif path.exists():
            files.append(path)
        else:
            raise UsageError(f"there is no file or folder {path}")
    if not files:
        places = ", ".join(str(path) for path in asked) or "an empty list"
        raise UsageError(f"no results (*.h5) in {places}: run hpcfl bench first")
    return list(dict.fromkeys(files))


def load_many(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> pd.DataFrame:
    """Read runs into one tidy table, one row per run, round, phase and device.

    The server has rows too, with device -1. Bytes and messages are counted at the devices, so
    they are NaN in the server's rows (and the columns float64, exact up to 2**53); select
    ``device >= 0`` for the devices.

    Parameters
    ----------
    paths : path or iterable of paths
        Files and folders, as for :func:`find`.

    Returns
    -------
    pandas.DataFrame
        Columns run_id, protocol, devices, dim, round, warmup, validated, phase, device,
        bytes_up, bytes_down, messages_up, messages_down, wall_seconds, cpu_seconds.

    Raises
    ------
    HpcflError
        If pandas is not installed, or a file cannot be read (see :func:`load`).
    UsageError
        If there is no file.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise HpcflError("tables need pandas: pip install hpcfl[table]") from error
    tables = [_columns(load(path)) for path in find(paths)]
    return pd.DataFrame(
        {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    )


def _columns(run: Run) -> dict[str, NDArray[Any]]:
    shape = (run.rounds, len(run.phases), run.devices + 1)
    by_round = (-1, 1, 1)
    columns: dict[str, Any] = {
        "run_id": np.array(run.run_id, object),
        "protocol": np.array(run.protocol, object),
        "devices": np.int64(run.devices),
        "dim": np.int64(run.dim),
        "round": np.arange(run.rounds).reshape(by_round),
        "warmup": run.warmup.reshape(by_round),
        "validated": run.validated.reshape(by_round),
        "phase": np.array(run.phases, object).reshape(1, -1, 1),
        "device": np.array([*range(run.devices), -1]),
    }
    for name in ("bytes_up", "bytes_down", "messages_up", "messages_down"):
        columns[name] = np.pad(
            getattr(run, name).astype(np.float64), ((0, 0), (0, 0), (0, 1)), constant_values=np.nan
        )
    columns |= {"wall_seconds": run.wall_seconds, "cpu_seconds": run.cpu_seconds}
    return {name: np.broadcast_to(column, shape).ravel() for name, column in columns.items()}
