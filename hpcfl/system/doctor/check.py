"""What one check found."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A warning works, but has a remedy.
OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    status: str
    found: str  # in one line
    remedy: str = ""  # what to do, if anything


def gibibytes(size: int | None) -> str:
    """Return a number of bytes as text."""
    return "?" if size is None else f"{size / 2**30:.1f} GiB"


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
