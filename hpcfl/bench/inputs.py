"""Where the devices' vectors come from: seeded synthetic updates, or a user's file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation.base import UPDATES
from hpcfl.errors import HpcflError, UsageError

Vector = NDArray[np.floating]
HDF5_SUFFIXES = (".h5", ".hdf5")


class Updates(ABC):
    """Gives every device its vector of a round.

    Attributes
    ----------
    dim : int
        Number d of coordinates.
    weights : ndarray of float64 or None
        The devices' weights, where the source knows them.
    """

    dim: int
    weights: NDArray[np.float64] | None = None

    @abstractmethod
    def vector(self, round_index: int, device: int) -> Vector:
        """Return a device's vector, shape (d,)."""


class SyntheticUpdates(Updates):
    """Independent normal coordinates of standard deviation 0.01, drawn from the run's seed."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim = dim
        self._seed = seed

    def vector(self, round_index: int, device: int) -> NDArray[np.float32]:
        seeds = np.random.SeedSequence(self._seed, spawn_key=(UPDATES, round_index, device))
        generator = np.random.Generator(np.random.SFC64(seeds))
        return generator.standard_normal(self.dim, np.float32) * np.float32(0.01)


class FileUpdates(Updates):
    """One row a device from a file; every round has the same vectors.

    Parameters
    ----------
    path : path
        A ``.npy`` file with an array of shape (N, d), or an HDF5 file with such a dataset called
        ``updates`` and, if wanted, one called ``weights`` of shape (N,).
    devices : int
        Number N of devices; the file must have as many rows.

    Raises
    ------
    UsageError
        If the file cannot be read or has another shape.
    """

    def __init__(self, path: Path, devices: int) -> None:
        self._path = path
        try:
            weights = self._open(path)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise UsageError(f"the updates in {path} cannot be read: {error}") from None
        shape, kind = self._rows.shape, self._rows.dtype.kind
        if len(shape) != 2 or kind not in "fiu":
            raise UsageError(
                f"{path} holds {self._rows.dtype} of shape {shape}; "
                "numbers of shape (devices, coordinates) are needed"
            )
        if shape[0] != devices:
            raise UsageError(
                f"{path} has {shape[0]} rows for {devices} devices; give --devices {shape[0]}"
            )
        self.dim = shape[1]
        if weights is not None:
            if weights.shape != (devices,) or not weights.sum() > 0:
                raise UsageError(f"the weights in {path} are not {devices} positive numbers")
            self.weights = weights / weights.sum()

    def _open(self, path: Path) -> NDArray[np.float64] | None:
        if path.suffix not in HDF5_SUFFIXES:
            self._rows = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(self._rows, np.ndarray):
                raise ValueError("it is no .npy file")
            return None
        import h5py

        file = h5py.File(path, "r", locking="best-effort")
        self._rows = file["updates"]
        return np.asarray(file["weights"], np.float64) if "weights" in file else None

    def vector(self, round_index: int, device: int) -> Vector:
        row = np.asarray(self._rows[device])
        if not np.isfinite(row).all():
            raise HpcflError(f"row {device} of {self._path} holds a value that is not finite")
        return row if row.dtype.kind == "f" else row.astype(np.float64)


def save_aggregate(path: Path, aggregate: NDArray[np.float64]) -> None:
    """Write the decoded sum, float64 of shape (d,), as .npy or, by the name, as HDF5."""
    if path.suffix not in HDF5_SUFFIXES:
        with path.open("wb") as file:
            np.save(file, aggregate)
        return
    import h5py

    with h5py.File(path, "w", locking="best-effort") as file:
        file["aggregate"] = aggregate
