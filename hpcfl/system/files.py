"""Reads users' files, and describes what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError


def require(path: Path) -> None:
    """Raise a UsageError if there is no file at a path."""
    if not path.is_file():
        raise UsageError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}")


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a ``.npz`` file by name; raise ValueError if it is not a valid one."""
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except OSError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise ValueError(f"it is not a .npz file, or it is damaged ({brief(error)})") from None


def brief(error: Exception) -> str:
    """Return an error's message in one line of at most 200 characters, or else its type."""
    return " ".join(str(error).split())[:200] or type(error).__name__
