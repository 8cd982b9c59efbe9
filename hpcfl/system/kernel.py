"""Small readings of the operating system; a system that does not tell is no error."""

from __future__ import annotations

import os


def read(path: str | os.PathLike[str]) -> str:
    """Return a system file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def load_1min() -> float | None:
    """Return the mean number of runnable processes over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
