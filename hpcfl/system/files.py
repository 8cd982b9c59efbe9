"""Reads users' files, and words what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError


def require(path: Path) -> None:
    """Refuse, by UsageError, a path at which there is no file."""
    if not path.is_file():
        raise UsageError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}")


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a ``.npz`` file by name; ValueError if it is none, or is damaged."""
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except OSError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise ValueError(f"it is not a .npz file, or a damaged one ({brief(error)})") from None


def brief(error: Exception) -> str:
    """Return an error's words on one line, as far as an error message can hold them."""
    return " ".join(str(error).split())[:200] or type(error).__name__
