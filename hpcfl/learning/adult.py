"""Adult (Census Income) of the UCI repository, by B. Becker and R. Kohavi, doi:10.24432/C5XW20.

A line is a person: 14 attributes and the label, separated by commas. `adult.test` begins with a
line ``|1x3 Cross validator``, and its labels end in a full stop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.learning.base import Dataset, Labels, reading

# Attributes in the order of the file. fnlwgt, the number of people whom the person represents in
# the census, is kept as a number like the others.
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    "native-country",
)
NUMBERS = {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}
LABELS = ("<=50K", ">50K")
# Rows of the published files. Nothing else reveals a file that was cut off between two lines.
ROWS = {"adult.data": 32_561, "adult.test": 16_281}

Column = NDArray[Any]  # float64 or text, shape (n,)


def read(data_dir: Path, *, standardise: bool = True) -> Dataset:
    """Read ``adult.data`` and ``adult.test`` in the folder ``adult``.

    Numbers are standardised by the mean and deviation of the training part. The data set
    ``adult-raw`` leaves them unchanged: they reach 1.5 million (fnlwgt) beside the 0 or 1 of a
    category. Categories are one-hot over the values in the training part; a value that only the
    test part has becomes all zeros. A missing value, ``?``, is a separate category. Inputs have
    shape (108,), in the order of the file; class 1 is an income above 50,000 dollars.
    """
    train, train_labels = _read_rows(data_dir, "adult.data")
    test, test_labels = _read_rows(data_dir, "adult.test")
    blocks: tuple[list[Column], list[Column]] = ([], [])
    for name, column in train.items():
        for part, block in zip((column, test[name]), blocks, strict=True):
            if name not in NUMBERS:
                block.append(part[:, None] == np.unique(column))
            elif standardise:
                deviation = column.std() or 1.0  # a constant becomes 0
                block.append(((part - column.mean()) / deviation)[:, None])
            else:
                block.append(part[:, None])
    return Dataset(
        name="adult" if standardise else "adult-raw",
        train_inputs=np.concatenate(blocks[0], axis=1, dtype=np.float32),
        train_labels=train_labels,
        test_inputs=np.concatenate(blocks[1], axis=1, dtype=np.float32),
        test_labels=test_labels,
        classes=len(LABELS),
    )


def _read_rows(data_dir: Path, name: str) -> tuple[dict[str, Column], Labels]:
    """Return the attributes, each of shape (n,), and the labels."""
    path = data_dir / "adult" / name
    with reading(path, "adult", data_dir):
        lines = path.read_text("ascii").splitlines()
        # The first line of adult.test begins with "|" and is not a person.
        rows = np.array([line.split(",") for line in lines if line and line[0] != "|"], ndmin=2)
        if rows.shape != (ROWS[name], len(COLUMNS) + 1):
            raise ValueError(
                f"it has {' x '.join(map(str, rows.shape))} fields, but the published file has "
                f"{ROWS[name]} x {len(COLUMNS) + 1}"
            )
        *attributes, labels = np.char.strip(rows).T
        labels = np.char.rstrip(labels, ".")
        if not np.isin(labels, LABELS).all():
            raise ValueError(f"it has labels that are not {' or '.join(LABELS)}")
        columns = {
            column: values.astype(np.float64) if column in NUMBERS else values
            for column, values in zip(COLUMNS, attributes, strict=True)
        }
    return columns, (labels == LABELS[1]).astype(np.int64)
