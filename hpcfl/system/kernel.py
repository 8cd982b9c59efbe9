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
