"""Adult (Census Income) of the UCI repository, by B. Becker and R. Kohavi, doi:10.24432/C5XW20.

A line is a person: 14 attributes and the label, separated by commas. `adult.test` begins with a
line ``|1x3 Cross validator``, and its labels end in a full stop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.learning.base import Dataset, Inputs, Labels, damaged, missing

# In the order of the file; True for a number, False for a category. fnlwgt, the number of people
# that the census takes the person to stand for, is kept as a number like the others.
COLUMNS = {
    "age": True,
    "workclass": False,
    "fnlwgt": True,
    "education": False,
    "education-num": True,
    "marital-status": False,
    "occupation": False,
    "relationship": False,
    "race": False,
    "sex": False,
    "capital-gain": True,
    "capital-loss": True,
    "hours-per-week": True,
    "native-country": False,
}
LABELS = ("<=50K", ">50K")
TRAIN_ROWS = 32_561
TEST_ROWS = 16_281

Column = NDArray[Any]  # float64 or text, shape (n,)


def read(
    data_dir: Path,
    train_rows: int = TRAIN_ROWS,
    test_rows: int = TEST_ROWS,
    *,
    standardise: bool = True,
) -> Dataset:
    """Read ``adult.data`` and ``adult.test`` in the folder ``adult``.

    Numbers are standardised by their mean and deviation on the training part, or, as the data set
    ``adult-raw``, left as they are, of up to 1.5 million (fnlwgt) beside the 1 of a category: what
    an experiment without any preparation of its inputs has. Categories are
    one-hot, with the categories that occur in the training part; a value that only the test part
    has is all zeros. A missing value, ``?``, is a category of its own: no row is left out. Inputs
    have shape (108,) for the published files, attributes in the order of the file; class 1 is an
    income above 50,000 dollars.

    The files must have as many rows as given: one cut off between two lines shows in nothing else.
    A UsageError says which is missing, damaged or something else.
    """
    train, train_labels = _read_rows(data_dir, "adult.data", train_rows)
    test, test_labels = _read_rows(data_dir, "adult.test", test_rows)
    numbers = _standardise if standardise else _as_columns
    blocks = [
        numbers(train[name], test[name]) if numeric else _one_hot(train[name], test[name])
        for name, numeric in COLUMNS.items()
    ]
    return Dataset(
        name="adult" if standardise else "adult-raw",
        train_inputs=np.concatenate([block[0] for block in blocks], axis=1, dtype=np.float32),
        train_labels=train_labels,
        test_inputs=np.concatenate([block[1] for block in blocks], axis=1, dtype=np.float32),
        test_labels=test_labels,
        classes=len(LABELS),
    )


def _read_rows(data_dir: Path, name: str, expected: int) -> tuple[dict[str, Column], Labels]:
    """Return the attributes, each of shape (n,), and the labels."""
    path = data_dir / "adult" / name
    rows: list[list[str]] = []
    try:
        text = path.read_text("ascii")
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("|"):
                continue  # the empty line at the end, and the first of adult.test
            if len(rows) == expected:
                raise ValueError(f"it has more than the {expected} rows of the published file")
            rows.append(_parse_row(line, number))
    except FileNotFoundError:
        raise missing(path, "adult", data_dir) from None
    except (OSError, ValueError) as error:
        raise damaged(path, f"cannot be read ({error})", "adult", data_dir) from None
    if len(rows) != expected:
        found = f"has {len(rows)} of the {expected} rows of the published file"
        raise damaged(path, found, "adult", data_dir)
    *attributes, labels = zip(*rows, strict=True)
    columns: dict[str, Column] = {
        column: np.array(values, np.float64 if numeric else np.str_)
        for (column, numeric), values in zip(COLUMNS.items(), attributes, strict=True)
    }
    return columns, np.array([LABELS.index(label) for label in labels], np.int64)


def _parse_row(line: str, number: int) -> list[str]:
    """Return the 14 attributes and the label without its full stop."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(COLUMNS) + 1:
        raise ValueError(
            f"line {number} has {len(fields)} fields, where a row has {len(COLUMNS) + 1}"
        )
    fields[-1] = fields[-1].removesuffix(".")
    if fields[-1] not in LABELS:
        raise ValueError(f"line {number} has none of the labels {' and '.join(LABELS)}")
    for (column, numeric), field in zip(COLUMNS.items(), fields, strict=False):
        if numeric and not (field.isdecimal() and len(field) < 10):
            raise ValueError(f"line {number} has no whole number as its {column}")
        if not field:
            raise ValueError(f"line {number} has nothing as its {column}")
    return fields


def _standardise(train: Column, test: Column) -> tuple[Inputs, Inputs]:
    """Return both parts, float32 of shapes (n, 1) and (m, 1)."""
    mean = train.mean()
    deviation = train.std() or 1.0  # a constant becomes 0
    return _as_columns(*((part - mean) / deviation for part in (train, test)))


def _as_columns(train: Column, test: Column) -> tuple[Inputs, Inputs]:
    """Return both parts, float32 of shapes (n, 1) and (m, 1)."""
    return train.astype(np.float32)[:, None], test.astype(np.float32)[:, None]


def _one_hot(train: Column, test: Column) -> tuple[Inputs, Inputs]:
    """Return both parts, float32 of shapes (n, c) and (m, c) for c categories, sorted by name."""
    categories = np.unique(train)
    return (
        (train[:, None] == categories).astype(np.float32),
        (test[:, None] == categories).astype(np.float32),
    )
