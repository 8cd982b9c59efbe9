"""CIFAR-10, in the python version of A. Krizhevsky, V. Nair and G. Hinton.

Its batches are pickles, and a pickle is a program. So a file's checksum is compared with the
published file's before it is loaded.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.learning.base import Dataset, Labels, damaged, folder_of, missing, scale
from hpcfl.options.names import DATASETS

CLASSES, IMAGE = DATASETS["cifar10"].classes, DATASETS["cifar10"].shape
# Per channel (red, green, blue), of the 50,000 training images.
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
DEVIATION = np.array([0.2470, 0.2435, 0.2616], np.float32)

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
# SHA-256 of the publisher's files.
DIGESTS = {
    "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
}


def read(data_dir: Path, digests: Mapping[str, str] = DIGESTS) -> Dataset:
    """Read CIFAR-10, from as many of the five training batches as are there, at least the first.

    Images have shape (3, 32, 32), normalised by channel with `MEAN` and `DEVIATION`. Each file must
    have its SHA-256 of `digests`; a UsageError says which is missing or not the published one.
    """
    folder = folder_of("cifar10", data_dir)
    found = [name for name in TRAIN_FILES if (folder / name).is_file()]
    if TRAIN_FILES[0] not in found:
        raise missing(folder / TRAIN_FILES[0], "cifar10", data_dir)
    absent = [name for name in TRAIN_FILES if name not in found]
    incomplete = (
        f"trained with {len(found)} of the {len(TRAIN_FILES)} batches of CIFAR-10: there is no "
        f"{' and no '.join(absent)} in {folder}"
    )
    parts = [_read_batch(data_dir, name, digests) for name in found]
    test_pixels, test_labels = _read_batch(data_dir, TEST_FILE, digests)
    return Dataset(
        name="cifar10",
        train_inputs=scale(np.concatenate([part[0] for part in parts]), MEAN, DEVIATION),
        train_labels=np.concatenate([part[1] for part in parts]),
        test_inputs=scale(test_pixels, MEAN, DEVIATION),
        test_labels=test_labels,
        classes=CLASSES,
        incomplete=incomplete if absent else "",
    )


def _read_batch(
    data_dir: Path, name: str, digests: Mapping[str, str]
) -> tuple[NDArray[np.uint8], Labels]:
    """Return images, uint8 of shape (n, 3, 32, 32), and labels, int64 of shape (n,)."""
    path = folder_of("cifar10", data_dir) / name
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise missing(path, "cifar10", data_dir) from None
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})", "cifar10", data_dir) from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != digests[name]:
        wrong = f"is not the published file (its SHA-256 is {digest}, not {digests[name]})"
        raise damaged(path, wrong, "cifar10", data_dir)
    batch = pickle.loads(content, encoding="bytes")  # Python 2 wrote it
    return batch[b"data"].reshape(-1, *IMAGE), np.array(batch[b"labels"])
