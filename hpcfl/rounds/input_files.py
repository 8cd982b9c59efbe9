"""Users' files: vectors to aggregate, and the aggregate of a round."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.report.formats import counted
from hpcfl.rounds.inputs import HELD_BYTES, Updates, Vector
from hpcfl.system import files, hdf5, outputs


class FileUpdates(Updates):
    """Vectors from a file with one row per device; all rounds use the same vectors.

    The file has N = `devices` rows, or any number of rows for None.

    It is a ``.npy`` file with an array of shape (N, d), or an HDF5 file with such an array named
    ``updates`` and an optional array ``weights`` of shape (N,). Raise UsageError for other content.
    The rows of a rank's devices are read once, before the first round, up to `HELD_BYTES`. Other
    rows are read whenever they are needed.
    """

    def __init__(self, path: Path, devices: int | None) -> None:
        self._read: dict[int, Vector] = {}
        files.require(path)
        weights = None
        try:
            if path.suffix.lower() == ".npy":
                self._rows: Any = np.load(path, mmap_mode="r")
            else:
                found = hdf5.opened(path, "r")
                self._rows = found["updates"]
                weights = found["weights"][()] if "weights" in found else None
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"the updates in {path} cannot be read ({files.brief(error)}): give NumPy's .npy, "
                "or HDF5 with an array called updates"
            ) from None
        shape, kind = self._rows.shape, self._rows.dtype
        if len(shape) != 2 or kind.kind not in "fiu" or 0 in shape:
            raise UsageError(
                f"{path} holds {kind} of shape {shape}; "
                "numbers of shape (devices, coordinates) are needed"
            )
        self.devices, self.dim = shape
        if devices not in (None, self.devices):
            raise UsageError(
                f"{path} has {counted(self.devices, 'row')} for {counted(devices, 'device')}; "
                f"give --devices {self.devices}"
            )
        # Use this machine's byte order and a precision that all code supports.
        self._dtype = np.dtype(np.float32 if kind.str in ("<f4", ">f4") else np.float64)
        if weights is not None:
            self.weights, self.total_weight = _scaled(path, weights, self.devices)

    def prepare(self, round_index: int, devices: Iterable[int]) -> None:
        most = HELD_BYTES // (self.dim * self._dtype.itemsize)
        for device in devices:
            if device not in self._read and len(self._read) < most:
                self._read[device] = self.vector(round_index, device)

    def vector(self, round_index: int, device: int) -> Vector:
        if device in self._read:
            return self._read[device]
        return np.asarray(self._rows[device]).astype(self._dtype)


def _scaled(path: Path, weights: Any, devices: int) -> tuple[NDArray[np.float64], float]:
    """Return the weights of a file, scaled to the sum 1, and their original sum."""
    usable = weights.shape == (devices,) and weights.dtype.kind in "fiu"
    values = np.asarray(weights if usable else [0], np.float64)
    total = float(values.sum())
    if not (0 < total < np.inf and (values >= 0).all()):
        raise UsageError(
            f"the weights in {path} are {weights.dtype} of shape {weights.shape}: "
            f"{devices} positive numbers of shape ({devices},) are needed"
        )
    return values / total, total


def save_aggregate(path: Path, total: NDArray[np.float64], mean: NDArray[np.float64]) -> None:
    """Write the aggregate of a round, float64 of shape (d,): .npy has only the sum, HDF5 both.

    `total` is the weighted sum of the survivors' vectors, `mean` their weighted mean.
    """
    with outputs.writing(path, outputs.AGGREGATE) as file:
        if path.suffix.lower() == ".npy":
            np.save(file, total)
        else:
            import h5py

            with h5py.File(file, "w") as stored:
                stored["sum"], stored["mean"] = total, mean
