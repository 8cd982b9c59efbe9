"""FEMNIST as LEAF makes it (S. Caldas et al., "LEAF: a benchmark for federated settings").

Each JSON file has a group of writers: ``users``, their names; ``num_samples``, as many numbers;
and ``user_data``, by name, with ``x``, a list of images of 784 numbers from 0 (ink) to 1
(paper), and ``y``, a list of as many classes. All of its files are read, one after another.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hpcfl.learning.base import Dataset, Inputs, Labels, damaged, missing
from hpcfl.options.names import DATASETS

# Ten digits, 26 capital and 26 small letters.
CLASSES, IMAGE = DATASETS["femnist"].classes, DATASETS["femnist"].shape
PIXELS = 28 * 28


def read_femnist(data_dir: Path) -> Dataset:
    """Read LEAF's JSON files in the folders ``femnist/train`` and ``femnist/test``.

    Images have shape (1, 28, 28), in [0, 1] as LEAF scales them. Writers are numbered as they come,
    files sorted by name; a writer in two files is one writer. A UsageError says that there are no
    files, or which is damaged or something else.
    """
    train_inputs, train_labels, writers = _read_part(data_dir, "train")
    test_inputs, test_labels, _ = _read_part(data_dir, "test")
    return Dataset(
        name="femnist",
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=CLASSES,
        writers=writers,
    )


def _read_part(data_dir: Path, part: str) -> tuple[Inputs, Labels, Labels]:
    """Return images, labels and writers of all files of a part."""
    folder = data_dir / "femnist" / part
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise missing(folder / "*.json", "femnist", data_dir)
    numbers: dict[str, int] = {}
    inputs: list[Inputs] = []
    labels: list[Labels] = []
    writers: list[Labels] = []
    for path in paths:
        # A file's numbers take many times their size as Python objects: one file at a time.
        try:
            for user, images, classes in _parse(path):
                number = numbers.setdefault(user, len(numbers))
                inputs.append(images)
                labels.append(classes)
                writers.append(np.full(len(classes), number, np.int64))
        except KeyError as error:
            found = f"has no {error.args[0]!r}, which LEAF's files have"
            raise damaged(path, found, "femnist", data_dir) from None
        except (OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
            found = f"is not a file of LEAF's FEMNIST ({error})"
            raise damaged(path, found, "femnist", data_dir) from None
    if not inputs:
        raise damaged(paths[0], "has no samples, nor has another file", "femnist", data_dir)
    return np.concatenate(inputs), np.concatenate(labels), np.concatenate(writers)


def _parse(path: Path) -> list[tuple[str, Inputs, Labels]]:
    """Return name, images and labels of each writer of a file who has samples."""
    content = json.loads(path.read_bytes())
    parsed = []
    for user in content["users"]:
        data = content["user_data"][user]
        labels = np.asarray(data["y"], np.int64)
        images = np.asarray(data["x"], np.float32)
        if not labels.size:
            continue
        if images.shape != (len(labels), PIXELS):
            raise ValueError(
                f"writer {user!r} does not have {len(labels)} images of {PIXELS} pixels"
            )
        if labels.min() < 0 or labels.max() >= CLASSES:
            raise ValueError(f"writer {user!r} has labels that are not 0 to {CLASSES - 1}")
        if not ((images >= 0) & (images <= 1)).all():
            raise ValueError(f"writer {user!r} has pixels that are not 0 to 1")
        parsed.append((user, images.reshape(len(labels), *IMAGE), labels))
    return parsed
