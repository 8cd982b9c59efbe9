"""Writes tiny data sets in their publishers' formats, and finds the real ones."""

import gzip
import hashlib
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

BATCHES = Path("cifar10/cifar-10-batches-py")


def real_data(folder):
    """Return the folder of the real data sets, or skip the test."""
    data_dir = os.environ.get("HPCFL_DATA")
    if not data_dir:
        pytest.skip("HPCFL_DATA does not name a folder of data sets")
    if not (Path(data_dir) / folder).is_dir():
        pytest.skip(f"the folder of HPCFL_DATA has no {folder}")
    return Path(data_dir)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# MNIST


def idx_bytes(values, magic=None):
    magic = 2048 + values.ndim if magic is None else magic
    return struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()


def write_mnist(data_dir, packed=True):
    """Write 20 training and 10 test images; return the arrays by their file's stem."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 20), ("t10k", 10)):
        images = generator.integers(0, 256, (count, 28, 28), np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        arrays |= {f"{part}-images-idx3-ubyte": images, f"{part}-labels-idx1-ubyte": labels}
    for stem, values in arrays.items():
        content = idx_bytes(values)
        path = data_dir / "mnist" / (f"{stem}.gz" if packed else stem)
        write(path, gzip.compress(content) if packed else content)
    return arrays


# CIFAR-10


def batch_bytes(images, labels):
    return pickle.dumps({b"data": images.reshape(len(images), 3072), b"labels": labels})


def write_batches(data_dir, contents):
    """Write files of CIFAR-10; return their SHA-256."""
    for name, content in contents.items():
        write(data_dir / BATCHES / name, content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


# Adult


def adult_row(age=40, workclass="Private", country="Cuba", label="<=50K", weight=100_000):
    return (
        f"{age}, {workclass}, {weight}, HS-grad, 9, Divorced, Sales, Unmarried, White, Male, "
        f"0, 0, 40, {country}, {label}\n"
    )


def write_adult(data_dir, train, test):
    write(data_dir / "adult" / "adult.data", "".join([*train, "\n"]).encode())
    first = "|1x3 Cross validator\n"
    write(data_dir / "adult" / "adult.test", "".join([first, *test, "\n"]).encode())


# FEMNIST


def leaf_bytes(samples, ink=0.25):
    """Return a JSON file with the given labels by writer; every pixel is `ink`."""
    content = {
        "users": list(samples),
        "num_samples": [len(labels) for labels in samples.values()],
        "user_data": {
            user: {"x": [[ink] * 784 for _ in labels], "y": labels}
            for user, labels in samples.items()
        },
    }
    return json.dumps(content).encode()


def write_femnist(data_dir, train, test):
    for part, files in (("train", train), ("test", test)):
        for number, content in enumerate(files):
            write(data_dir / "femnist" / part / f"all_data_{number}.json", content)
