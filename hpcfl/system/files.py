"""Reads users' files, and words what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError

_LONGEST_WORD = 200  # letters of a file's own words within an error message


def require(path: Path) -> None:
    """Refuse, by UsageError, a path at which there is no file."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder, and not a file")
    if not path.is_file():
        raise UsageError(f"there is no file {path}")


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
    """Return an error's words on one line, cut to what an error message can hold."""
    written = " ".join(str(error).split()) or type(error).__name__
    half = _LONGEST_WORD // 2
    return written if len(written) <= _LONGEST_WORD else f"{written[:half]}...{written[-half:]}"
