"""What all readers of data sets have in common: the result, and the words for bad files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.system import files

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]

# First element of the spawn keys of the run's seed: what the random numbers are for. The layers
# above count theirs from 0.
SYNTHETIC, PARTITION, THINNING, STYLES = 100, 101, 102, 103


@dataclass(frozen=True)
class Dataset:
    """A classification problem in memory, split as its publisher splits it."""

    name: str
    train_inputs: Inputs  # shape (n, *shape)
    train_labels: Labels  # shape (n,), 0 to `classes` - 1
    test_inputs: Inputs  # shape (m, *shape)
    test_labels: Labels
    classes: int
    writers: Labels | None = None  # who wrote each training sample, 0 upwards, where it is known
    incomplete: str = ""  # what of the published data is not there, in a clause; "" for nothing

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.train_inputs.shape[1:]


def generator_of(seed: int, purpose: int, *number: int) -> np.random.Generator:
    """Return the generator of a seed for a purpose, and a number of it, independent of others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, *number)))


def find_data_dir(name: str, data_dir: Path | None) -> Path:
    """Return the folder of the data sets: the given one, else that of HPCFL_DATA."""
    if data_dir is not None:
        return data_dir
    if not os.environ.get("HPCFL_DATA"):
        raise UsageError(
            f"the data set {name} is read from files: give their folder with --data-dir DIR or in "
            f"the environment variable HPCFL_DATA, and fill it with `hpcfl data fetch {name} "
            "--data-dir DIR`"
        )
    return Path(os.environ["HPCFL_DATA"])


def missing(path: Path, name: str, data_dir: Path) -> UsageError:
    """Return the error for a file of a data set that is not there."""
    return UsageError(f"{path} is missing: {_advice(name, data_dir)}")


def damaged(path: Path, found: str, name: str, data_dir: Path) -> UsageError:
    """Return the error for a file that is not what it should be.

    `found`, what is wrong with it and what was expected, follows the file's name in the sentence.
    """
    return UsageError(f"{path} {found}: {_advice(name, data_dir)}")


def _advice(name: str, data_dir: Path) -> str:
    return f"get it with `hpcfl data fetch {name} --data-dir {data_dir}`"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def scale(pixels: NDArray[np.uint8], mean: Inputs, deviation: Inputs) -> Inputs:
    """Return ``(pixels / 255 - mean) / deviation``, float32 of shape (n, channels, height, width).

    Mean and deviation, of shape (channels,), are those of the intensities divided by 255.
    """
    # In place: a copy of all images for each operation would take three times the memory.
    inputs = pixels.astype(np.float32)
    inputs /= np.float32(255)
    inputs -= mean[:, None, None]
    inputs /= deviation[:, None, None]
    return inputs
