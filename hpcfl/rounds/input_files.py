"""Users' files: vectors to aggregate, and what a round has given."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.formats import counted
from hpcfl.rounds.inputs import HELD_BYTES, Updates, Vector
from hpcfl.system import files, hdf5, outputs

_HDF5 = b"\x89HDF\r\n\x1a\n"
_READ = "give NumPy's .npy, or HDF5, .npz or .safetensors with an array called updates"


class FileUpdates(Updates):
    """One row a device from a file, of N = `devices` rows or, for None, of any number of them.

    Every round has the same vectors.

    A ``.npy`` file with an array of shape (N, d), or an HDF5, ``.npz`` or ``.safetensors`` file
    with such an array called ``updates`` and, if wanted, one called ``weights`` of shape (N,). A
    UsageError says what else it is. What a rank's devices need is read once, before the first
    round, up to `HELD_BYTES`; other rows are read whenever they are needed.
    """

    def __init__(self, path: Path, devices: int | None) -> None:
        self._path = path
        self._read: dict[int, Vector] = {}
        try:
            found = _arrays(path)
            if "updates" not in found:
                raise ValueError(f"it has no array 'updates', only {[*found]!r}")
            self._rows = found["updates"]
            # HDF5 takes what a writer that died has never written for zeros.
            stored = hasattr(self._rows, "is_virtual") and not self._rows.is_virtual
            if stored and not self._rows.id.get_storage_size():
                raise ValueError("its updates were never written")
            weights = found.get("weights")
            shape, kind = self._rows.shape, self._rows.dtype.kind
            if weights is not None and weights.shape == shape[:1]:
                weights = weights[()]
        except HpcflError:
            raise
        except Exception as error:  # a damaged file fails in many ways
            why = hdf5.reason(error) if isinstance(error, OSError) else files.brief(error)
            raise UsageError(f"the updates in {path} cannot be read ({why}): {_READ}") from None
        if len(shape) != 2 or kind not in "fiu" or not math.prod(shape):
            raise UsageError(
                f"{path} holds {self._rows.dtype} of shape {shape}; "
                "numbers of shape (devices, coordinates) are needed"
            )
        self.devices = shape[0] if devices is None else devices
        if shape[0] != self.devices:
            raise UsageError(
                f"{path} has {counted(shape[0], 'row')} for {counted(self.devices, 'device')}; "
                f"give --devices {shape[0]}"
            )
        self.dim = shape[1]
        if weights is not None:
            # Nothing is converted that is not a number: HDF5 has text and complex numbers too.
            usable = weights.shape == (self.devices,) and weights.dtype.kind in "fiu"
            values = np.asarray(weights if usable else [0], np.float64)
            total = values.sum()
            if not (0 < total < np.inf and (values >= 0).all()):
                raise UsageError(
                    f"the weights in {path} are {weights.dtype} of shape {weights.shape}: "
                    f"{self.devices} positive numbers of shape ({self.devices},) are needed"
                )
            self.weights, self.total_weight = values / total, float(total)

    def prepare(self, round_index: int, devices: Iterable[int]) -> None:
        held = sum(row.nbytes for row in self._read.values())
        size = self.dim * self._dtype.itemsize
        for device in devices:
            if device not in self._read and held + size <= HELD_BYTES:
                self._read[device] = self._row(device)
                held += size

    def vector(self, round_index: int, device: int) -> Vector:
        return self._read[device] if device in self._read else self._row(device)

    def _row(self, device: int) -> Vector:
        try:
            row = np.asarray(self._rows[device])
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            raise HpcflError(
                f"row {device} of {self._path} cannot be read: {files.brief(error)}"
            ) from None
        return row.astype(self._dtype)

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Of vectors: this machine's byte order, and a precision that all arithmetic knows."""
        return np.dtype(np.float32 if self._rows.dtype.str in ("<f4", ">f4") else np.float64)


def _arrays(path: Path) -> Any:
    """Return the arrays of a file by their names; those of an .npz file are read when asked for."""
    files.require(path)
    with path.open("rb") as file:
        head = file.read(8)
        if head == _HDF5 or path.suffix.lower() in outputs.HDF5:
            return hdf5.opened(path, "r")
        if path.suffix.lower() == ".safetensors":
            # The length of a header, the header, and the values at the places that it says.
            length = int.from_bytes(head, "little")
            header = json.loads(file.read(length))
            values = np.memmap(path, np.uint8, "r", 8 + length)
            kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
            return {
                name: values[slice(*one["data_offsets"])]
                .view(kinds.get(one["dtype"], one["dtype"]))
                .reshape(one["shape"])
                for name, one in header.items()
                if name != "__metadata__"
            }
    if not head.startswith((b"\x93NUMPY", b"PK")):
        raise ValueError("it is of another format")
    found = np.load(path, mmap_mode="r")
    return {"updates": found} if isinstance(found, np.ndarray) else found


def save_aggregate(path: Path, total: NDArray[np.float64], mean: NDArray[np.float64]) -> None:
    """Write what a round has given, float64 of shape (d,), in the format that the name tells.

    `total` is the sum of the survivors' vectors, each times its weight, and all that a .npy holds;
    `mean` is their weighted mean.
    """
    with outputs.writing(path, outputs.AGGREGATE) as file:
        if path.suffix.lower() == ".npy":
            np.save(file, total)
        elif path.suffix.lower() == ".npz":
            np.savez(file, sum=total, mean=mean)
        else:
            import h5py

            with h5py.File(file, "w") as stored:
                stored["sum"], stored["mean"] = total, mean
