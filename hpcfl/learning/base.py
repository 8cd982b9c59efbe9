"""Common parts of the data set readers: the result type, folders, and errors for bad files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.values import dataclass

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]

# Purposes of random numbers: the first element of the spawn keys of the run's seed. The layers
# above number their purposes from 0.
SYNTHETIC, PARTITION, THINNING, STYLES = 100, 101, 102, 103


@dataclass(frozen=True)
class Dataset:
    """A classification problem in memory, with its publisher's split."""

    name: str
    train_inputs: Inputs  # shape (n, *shape)
    train_labels: Labels  # shape (n,), 0 to `classes` - 1
    test_inputs: Inputs  # shape (m, *shape)
    test_labels: Labels
    classes: int
    writers: Labels | None = None  # writer of each training sample, from 0; None if unknown
    incomplete: str = ""  # clause that says which published data are missing; "" for none

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.train_inputs.shape[1:]


def generator_of(seed: int, purpose: int) -> np.random.Generator:
    """Return a seed's generator for one purpose; different purposes are independent."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose,)))


def find_data_dir(name: str, data_dir: Path | None) -> Path:
    """Return the folder of the data sets: `data_dir`, else the environment's HPCFL_DATA."""
    if data_dir is not None:
        return data_dir
    if not os.environ.get("HPCFL_DATA"):
        raise UsageError(
            f"the data set {name} is read from files: {advice(name, 'DIR')}, and give DIR with "
            "--data-dir or in the environment variable HPCFL_DATA"
        )
    return Path(os.environ["HPCFL_DATA"])


def folder_of(name: str, data_dir: Path) -> Path:
    """Return the folder of a data set's files, either hpcfl's or torchvision's."""
    own = data_dir / {"cifar10": "cifar10/cifar-10-batches-py"}.get(name, name)
    others = {"cifar10": "cifar-10-batches-py", "mnist": "MNIST/raw"}
    other = data_dir / others.get(name, name)
    return other if other.is_dir() and not own.is_dir() else own


def missing(path: Path, name: str, data_dir: Path) -> UsageError:
    """Return the error for a missing file or folder of a data set."""
    return UsageError(f"{path} is missing: {advice(name, data_dir)}")


@contextmanager
def reading(path: Path, name: str, data_dir: Path) -> Iterator[None]:
    """Turn an exception while reading a data set's file into a one-sentence UsageError."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path, name, data_dir) from None
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"{path} cannot be read as a file of {name} ({reason}): move it away, and "
            f"{advice(name, data_dir)}"
        ) from None


def advice(name: str, data_dir: Path | str) -> str:
    """Return instructions to get a data set's files into the folder, as the end of a sentence."""
    if name != "femnist":
        return f"get it with `hpcfl data fetch {name} --data-dir {data_dir}`"
    return (
        "make it with LEAF, which takes NIST's forms: run `./preprocess.sh -s niid --sf 0.1 -k 100 "
        "-t sample` in the folder data/femnist of https://github.com/TalwalkarLab/leaf, and copy "
        f"the folders data/train and data/test that this makes to {data_dir}/femnist/"
    )
