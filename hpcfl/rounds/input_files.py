"""Users' files: vectors to aggregate, and what a round has given."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.formats import counted
from hpcfl.rounds.inputs import HELD_BYTES, Updates, Vector
from hpcfl.system import files, outputs

HDF5_SUFFIXES = (".h5", ".hdf5")
LARGEST_CHUNK = 2**30  # bytes that a packed dataset may unpack to at once
# Of so many rows, and of so many values in all, a digest is made.
DIGEST_ROWS, DIGEST_VALUES = 2**10, 2**17


class FileUpdates(Updates):
    """One row a device from a file, of N = `devices` rows or, for None, of any number of them.

    Every round has the same vectors.

    A ``.npy`` file with an array of shape (N, d), or an HDF5 file with such a dataset called
    ``updates`` and, if wanted, one called ``weights`` of shape (N,). A UsageError says what else it
    is. What a rank's devices need is read once, before the first round, up to `HELD_BYTES`; other
    rows are read whenever they are needed.
    """

    def __init__(self, path: Path, devices: int | None) -> None:
        self._path = path
        self._read: dict[int, Vector] = {}
        self._weights: NDArray[np.float64] | None = None
        try:
            weights = self._open(path)
        except UsageError:
            raise
        except OSError as error:
            raise UsageError(
                f"the updates in {path} cannot be read: {error.strerror or error}"
            ) from None
        except Exception as error:  # a damaged HDF5 file fails in many ways
            raise UsageError(
                f"the updates in {path} cannot be read: {files.brief(error)}"
            ) from None
        shape, kind = self._rows.shape, self._rows.dtype.kind
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
            values = np.asarray(weights, np.float64) if usable else np.zeros(1)
            total = values.sum()
            if not (0 < total < np.inf and (values >= 0).all()):
                raise UsageError(f"the weights in {path} are not {self.devices} positive numbers")
            self.weights, self.total_weight = values / total, float(total)
            self._weights = values  # unlike their sum, the same on every machine

    def _open(self, path: Path) -> Any:
        """Set the rows, of which none is read yet; return the weights, None without any."""
        if path.suffix not in HDF5_SUFFIXES:
            with files.opened(path) as raw:
                shape, column_major, dtype = files.npy_header(raw)
                here = path.stat().st_size - raw.tell()
                if math.prod(shape) * dtype.itemsize != here:
                    raise ValueError(
                        f"its shape {files.shorten(shape)} does not fit its {here} bytes"
                    )
                order: Literal["C", "F"] = "F" if column_major else "C"
                if math.prod(shape) == 0:  # cannot be mapped
                    self._rows = np.empty(shape, dtype)
                else:
                    self._rows = np.memmap(raw, dtype, "r", raw.tell(), shape, order)
            return None
        import h5py

        files.require(path)
        file = h5py.File(path, "r", locking="best-effort")
        self._rows = _dataset(file, "updates")
        if not file.id.links.exists(b"weights"):
            return None
        weights = _dataset(file, "weights")
        # More than there are rows are refused for their shape: they need not be read.
        return weights[()] if weights.shape == self._rows.shape[:1] else np.empty(0)

    def prepare(self, round_index: int, devices: Iterable[int]) -> None:
        held = sum(row.nbytes for row in self._read.values())
        size = self.dim * self._dtype.itemsize
        for device in devices:
            if device not in self._read and held + size <= HELD_BYTES:
                self._read[device] = self._row(device)
                held += size

    def vector(self, round_index: int, device: int) -> Vector:
        return self._read[device] if device in self._read else self._row(device)

    def digest(self) -> str:
        """Return what tells this file from those with another shape, other weights or vectors.

        It is of all values of a short file, and of some of each row of a long one: of other places
        from row to row.
        """
        found = hashlib.sha256(f"{self._rows.shape} {self._dtype}".encode())
        if self._weights is not None:
            found.update(self._weights.tobytes())
        rows = min(self.devices, DIGEST_ROWS)
        width = min(self.dim, DIGEST_VALUES // rows)
        for k in range(rows):
            part = k / max(1, rows - 1)
            start = round(part * (self.dim - width))
            row = self._row(round(part * (self.devices - 1)), slice(start, start + width))
            found.update(row.tobytes())
        return found.hexdigest()

    def _row(self, device: int, part: slice = slice(None)) -> Vector:
        try:
            row = np.asarray(self._rows[device, part])
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            raise HpcflError(
                f"row {device} of {self._path} cannot be read: {files.brief(error)}"
            ) from None
        return row.astype(self._dtype)

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Of vectors: this machine's byte order, and a precision that all arithmetic knows."""
        return np.dtype(np.float32 if self._rows.dtype.str in ("<f4", ">f4") else np.float64)


def _dataset(file: Any, name: str) -> Any:
    """Return a dataset that lies in the file itself, every value of it.

    A ValueError says that it is a link, lies in other files, or claims more values than there are.
    """
    import h5py

    if not file.id.links.exists(name.encode()):
        raise ValueError(f"it has no dataset {name!r}, only {files.shorten(list(file))}")
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"its {name} are a link to somewhere else")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"its {name} are not a dataset")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"its {name} lie in other files")
    if dataset.dtype.hasobject:
        raise ValueError(f"its {name} are {dataset.dtype}, not numbers")
    if dataset.chunks is None:
        whole = dataset.id.get_storage_size() >= dataset.nbytes <= file.id.get_filesize()
    else:
        # HDF5 takes what was never written for zeros.
        chunks = math.prod(
            -(-length // side) for length, side in zip(dataset.shape, dataset.chunks, strict=True)
        )
        whole = dataset.id.get_num_chunks() == chunks
        if math.prod(dataset.chunks) * dataset.dtype.itemsize > LARGEST_CHUNK:
            raise ValueError(f"its {name} are packed in chunks of more than {LARGEST_CHUNK} bytes")
    if not whole:
        raise ValueError(f"its {name} claim a shape {dataset.shape} that the file does not hold")
    return dataset


def save_aggregate(path: Path, total: NDArray[np.float64], mean: NDArray[np.float64]) -> None:
    """Write what a round has given, float64 of shape (d,), as .npy or, by the name, as HDF5.

    `total` is the sum of the survivors' vectors, each times its weight, and all that a .npy holds;
    `mean` is their weighted mean.
    """
    with outputs.writing(path, outputs.AGGREGATE) as file:
        if path.suffix not in HDF5_SUFFIXES:
            np.save(file, total)
            return
        import h5py

        with h5py.File(file, "w") as stored:
            stored["sum"], stored["mean"] = total, mean
