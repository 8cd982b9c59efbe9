"""MNIST, in the IDX format of Y. LeCun, C. Cortes and C. J. C. Burges, packed by gzip or not.

An IDX file is big-endian: a magic number, which says the type and the number of dimensions, the
sizes of the dimensions, and the values. https://yann.lecun.com/exdb/mnist/ has the description.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from hpcfl.learning.base import Dataset, Labels, damaged, folder_of, missing, scale
from hpcfl.options.names import DATASETS

IMAGES_MAGIC = 2051  # unsigned bytes in three dimensions
LABELS_MAGIC = 2049  # unsigned bytes in one
SIDE = 28
CLASSES = DATASETS["mnist"].classes
# Of the 60,000 training images; the constants that are in general use.
MEAN = np.array([0.1307], np.float32)
DEVIATION = np.array([0.3081], np.float32)


def read_mnist(data_dir: Path) -> Dataset:
    """Read MNIST from its four files in the folder ``mnist``, each with or without ``.gz``.

    Images have shape (1, 28, 28), normalised by mean 0.1307 and deviation 0.3081. A UsageError says
    which file is missing, damaged or something else.
    """
    train_pixels, train_labels = read_part(data_dir, "train")
    test_pixels, test_labels = read_part(data_dir, "t10k")
    return Dataset(
        name="mnist",
        train_inputs=scale(train_pixels, MEAN, DEVIATION),
        train_labels=train_labels,
        test_inputs=scale(test_pixels, MEAN, DEVIATION),
        test_labels=test_labels,
        classes=CLASSES,
    )


def read_part(data_dir: Path, part: str) -> tuple[NDArray[np.uint8], Labels]:
    """Return images, uint8 of shape (n, 1, 28, 28), and labels, int64 of shape (n,)."""
    images_path = _find(data_dir, f"{part}-images-idx3-ubyte")
    labels_path = _find(data_dir, f"{part}-labels-idx1-ubyte")
    pixels = _read(images_path, IMAGES_MAGIC, (SIDE, SIDE), data_dir)
    labels = _read(labels_path, LABELS_MAGIC, (), data_dir)
    if len(labels) != len(pixels):
        found = f"has {len(labels)} labels for the {len(pixels)} images of {images_path.name}"
        raise damaged(labels_path, found, "mnist", data_dir)
    if labels.max() >= CLASSES:
        found = f"has the label {labels.max()}, where labels are 0 to {CLASSES - 1}"
        raise damaged(labels_path, found, "mnist", data_dir)
    return pixels[:, None], labels.astype(np.int64)


def _find(data_dir: Path, stem: str) -> Path:
    """Return the file's path; the unpacked one where there are both."""
    folder = folder_of("mnist", data_dir)
    # Some who hand the files on write a dot before idx.
    for name in (stem, stem.replace("-idx", ".idx")):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise missing(folder / f"{stem}.gz", "mnist", data_dir)


def _read(path: Path, magic: int, item: tuple[int, ...], data_dir: Path) -> NDArray[np.uint8]:
    """Return the values of an IDX file, uint8 of shape (n, *item)."""
    try:
        with path.open("rb") as raw:
            packed = path.suffix == ".gz"
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            return _parse(file, magic, item)
    except (OSError, EOFError, zlib.error, ValueError, MemoryError) as error:
        # Truncated or no gzip at all: gzip's own words say which.
        raise damaged(path, f"cannot be read ({error})", "mnist", data_dir) from None


def _parse(file: BinaryIO, magic: int, item: tuple[int, ...]) -> NDArray[np.uint8]:
    kind = "images" if item else "labels"
    length = 4 * (2 + len(item))
    header = file.read(length)
    if len(header) < length:
        raise ValueError(f"it ends in the header of {length} bytes")
    found_magic, count, *sizes = struct.unpack(f">{2 + len(item)}I", header)
    if found_magic != magic:
        raise ValueError(f"its magic number is {found_magic}, that of {kind} is {magic}")
    if tuple(sizes) != item:
        raise ValueError(f"its images are of {' x '.join(map(str, sizes))} pixels, not 28 x 28")
    if not count:
        raise ValueError(f"its header claims 0 {kind}")
    size = count * int(np.prod(item, dtype=np.int64))
    values = file.read(size + 1)
    if len(values) != size:
        fewer = "fewer" if len(values) < size else "more"
        raise ValueError(f"it holds {fewer} values than the {count} {kind} its header claims")
    return np.frombuffer(values, np.uint8).reshape(count, *item)
