"""Small readings of the operating system; a system that does not tell is no error."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


def read(path: str | os.PathLike[str]) -> str:
    """Return a system file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def without_home(text: str) -> str:
    """Return a text for a file that others may read: the home folder in paths is ``~``."""
    with suppress(RuntimeError):  # there is no home folder
        home = Path.home()
        if home != home.parent:  # of a container's user it may be the root
            return re.sub(rf"(?<![\w.-]){re.escape(str(home))}(?![\w.-])", "~", text)
    return text


def forget_peak() -> bool:
    """Let the peak of this process's resident memory begin anew; return whether the system can."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def resident_bytes() -> tuple[float, float]:
    """Return how much memory this process has resident, and its peak; NaN if it is not told.

    Pages that processes share, as those of libraries, count in full for each of them.
    """
    found = dict(
        line.split(":", 1) for line in read("/proc/self/status").splitlines() if ":" in line
    )
    now, peak = (found.get(name, "nan kB").split()[0] for name in ("VmRSS", "VmHWM"))
    return 1024 * float(now), 1024 * float(peak)


def load_1min() -> float | None:
    """Return the mean number of runnable processes over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
