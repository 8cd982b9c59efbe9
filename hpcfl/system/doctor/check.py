"""What one check found."""

from __future__ import annotations

import re
from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes
    ----------
    name : str
        What was checked.
    status : str
        ``"ok"``, ``"warning"`` (works, but see the remedy) or ``"problem"``.
    found : str
        What is there, in one line.
    remedy : str
        What to do, empty if nothing is to be done.
    """

    name: str
    status: str
    found: str
    remedy: str = ""


def gibibytes(size: int | None) -> str:
    """Return a number of bytes as text."""
    return "?" if size is None else f"{size / 2**30:.1f} GiB"


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
