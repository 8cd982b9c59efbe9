"""Images: MNIST in IDX files, CIFAR-10 in its publisher's pickles, FEMNIST in LEAF's JSON."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.learning.base import Dataset, Inputs, Labels, folder_of, missing, reading
from hpcfl.options.names import DATASETS

Pixels = NDArray[np.uint8]

# Mean and deviation per channel of the training images' intensities divided by 255: the constants
# in general use.
_MNIST_SCALE = ([0.1307], [0.3081])
_CIFAR10_SCALE = ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])

# Magic numbers of IDX: unsigned bytes in three dimensions and in one.
_IDX_IMAGES, _IDX_LABELS = 2051, 2049

# SHA-256 of the publisher's CIFAR-10 files. They are pickles, which can run code, so only the
# published files are loaded.
CIFAR10_DIGESTS = {
    "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
}


def read_mnist(data_dir: Path) -> Dataset:
    """Read MNIST, or the user's images, from four IDX files, each with or without ``.gz``."""
    train_pixels, train_labels = _read_idx_part(data_dir, "train")
    test_pixels, test_labels = _read_idx_part(data_dir, "t10k")
    return Dataset(
        name="mnist",
        train_inputs=_scale(train_pixels, *_MNIST_SCALE),
        train_labels=train_labels,
        test_inputs=_scale(test_pixels, *_MNIST_SCALE),
        test_labels=test_labels,
        classes=DATASETS["mnist"].classes,
    )


def _read_idx_part(data_dir: Path, part: str) -> tuple[Pixels, Labels]:
    """Return images, of shape (n, 1, 28, 28), and labels, of shape (n,)."""
    kind = DATASETS["mnist"]
    pixels = _read_idx(data_dir, f"{part}-images-idx3-ubyte", _IDX_IMAGES)
    labels = _read_idx(data_dir, f"{part}-labels-idx1-ubyte", _IDX_LABELS)
    with reading(folder_of("mnist", data_dir), "mnist", data_dir):
        if pixels.shape[1:] != kind.shape[1:]:
            raise ValueError(f"the {part} images have {pixels.shape[1:]} pixels, not 28 x 28")
        if len(labels) != len(pixels) or not len(labels):
            raise ValueError(f"there are {len(labels)} {part} labels for {len(pixels)} images")
        if labels.max() >= kind.classes:
            raise ValueError(f"the {part} labels go up to {labels.max()}, but must be 0 to 9")
    return pixels[:, None], labels.astype(np.int64)


def _read_idx(data_dir: Path, stem: str, magic: int) -> Pixels:
    """Return the values of an IDX file; the uncompressed file has precedence.

    IDX is big-endian: a magic number, whose last byte is the number of dimensions; the size of
    each dimension; and the values.
    """
    folder = folder_of("mnist", data_dir)
    # Some mirrors have a dot instead of a hyphen before idx.
    paths = sorted(folder.glob(stem.replace("-idx", "[.-]idx") + "*"))
    path = paths[0] if paths else folder / f"{stem}.gz"
    with reading(path, "mnist", data_dir):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        found, *sizes = np.frombuffer(content, ">u4", 1 + magic % 256).tolist()
        if found != magic:
            raise ValueError(f"its magic number is {found}, not {magic}")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)


def read_cifar10(data_dir: Path) -> Dataset:
    """Read CIFAR-10, from those of the five training batches that exist; the first one must."""
    folder = folder_of("cifar10", data_dir)
    names = [name for name in CIFAR10_DIGESTS if name != "test_batch"]
    absent = [name for name in names[1:] if not (folder / name).is_file()]
    found = [name for name in names if name not in absent]
    parts = [_read_batch(data_dir, name) for name in found]
    test_pixels, test_labels = _read_batch(data_dir, "test_batch")
    incomplete = (
        f"trained with {len(found)} of the {len(names)} batches of CIFAR-10: there is no "
        f"{' and no '.join(absent)} in {folder}"
    )
    return Dataset(
        name="cifar10",
        train_inputs=_scale(np.concatenate([part[0] for part in parts]), *_CIFAR10_SCALE),
        train_labels=np.concatenate([part[1] for part in parts]),
        test_inputs=_scale(test_pixels, *_CIFAR10_SCALE),
        test_labels=test_labels,
        classes=DATASETS["cifar10"].classes,
        incomplete=incomplete if absent else "",
    )


def _read_batch(data_dir: Path, name: str) -> tuple[Pixels, Labels]:
    """Return images, of shape (n, 3, 32, 32), and labels, of shape (n,)."""
    path = folder_of("cifar10", data_dir) / name
    with reading(path, "cifar10", data_dir):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != CIFAR10_DIGESTS[name]:
            raise ValueError("its SHA-256 is not that of the published file")
    batch = pickle.loads(content, encoding="bytes")  # written by Python 2
    return batch[b"data"].reshape(-1, *DATASETS["cifar10"].shape), np.array(batch[b"labels"])


def _scale(pixels: Pixels, mean: Sequence[float], deviation: Sequence[float]) -> Inputs:
    """Return ``(pixels / 255 - mean) / deviation`` by channel."""
    # In place: one copy per operation would take three times the memory.
    inputs = pixels.astype(np.float32)
    inputs /= np.float32(255)
    inputs -= np.array(mean, np.float32)[:, None, None]
    inputs /= np.array(deviation, np.float32)[:, None, None]
    return inputs


def read_femnist(data_dir: Path) -> Dataset:
    """Read FEMNIST, or the user's data, in the format of LEAF (S. Caldas et al., 2018).

    Each JSON file in ``femnist/train`` and ``femnist/test`` has a group of writers: ``users`` has
    their names, and ``user_data`` maps a name to ``x``, a list of images of 784 numbers from 0
    (ink) to 1 (paper), and ``y``, a list of their classes. Writers are numbered in order of
    appearance, with files sorted by name; a writer in two files counts once.
    """
    train_inputs, train_labels, writers = _read_leaf_part(data_dir, "train")
    test_inputs, test_labels, _ = _read_leaf_part(data_dir, "test")
    return Dataset(
        name="femnist",
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=DATASETS["femnist"].classes,
        writers=writers,
    )


def _read_leaf_part(data_dir: Path, part: str) -> tuple[Inputs, Labels, Labels]:
    """Return images, labels and writers of all files of a part."""
    folder = data_dir / "femnist" / part
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise missing(folder / "*.json", "femnist", data_dir)
    numbers: dict[str, int] = {}
    inputs, labels, writers = [], [], []
    for path in paths:
        # One file at a time, because numbers are many times larger as Python objects.
        with reading(path, "femnist", data_dir):
            content = json.loads(path.read_bytes())
            for user in content["users"]:
                images, classes = _parse_writer(content["user_data"][user])
                number = numbers.setdefault(user, len(numbers))
                inputs.append(images)
                labels.append(classes)
                writers.append(np.full(len(classes), number, np.int64))
    with reading(folder, "femnist", data_dir):
        return np.concatenate(inputs), np.concatenate(labels), np.concatenate(writers)


def _parse_writer(data: dict[str, list[list[float]]]) -> tuple[Inputs, Labels]:
    """Return the images and labels of a writer."""
    kind = DATASETS["femnist"]
    labels = np.asarray(data["y"], np.int64)
    images = np.asarray(data["x"], np.float32).reshape(len(labels), *kind.shape)
    if not ((labels >= 0) & (labels < kind.classes)).all():
        raise ValueError(f"its labels must be 0 to {kind.classes - 1}")
    if not ((images >= 0) & (images <= 1)).all():
        raise ValueError("its pixels must be 0 to 1")
    return images, labels
