"""Cores and memory of this host, and how much of them this process and other ranks may use.

A *core* is a physical core; launchers and Slurm count its hardware threads as CPUs. Unknown values
are None or empty. psutil is imported late, because most ranks do not need it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.system import launch

CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
# Limit, usage, and the part of the usage that can be reclaimed, in both versions of control groups.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def read(path: str | os.PathLike[str]) -> str:
    """Return a system file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def affinity(process: int = 0) -> tuple[int, ...]:
    """Return the hardware threads that a process may use, () if they are unknown."""
    try:
        return tuple(sorted(os.sched_getaffinity(process)))
    except (AttributeError, OSError):  # macOS has no affinity
        return ()


def physical() -> int | None:
    """Return the number of cores of this host."""
    import psutil

    return psutil.cpu_count(logical=False)


def usable(threads: Iterable[int] = ()) -> int | None:
    """Return the number of cores that the ranks on this host may use together.

    `threads` are the hardware threads of all their affinities together. Without them, the
    affinities of this process and its launcher count, or Slurm's allocation, because launchers bind
    a rank to its own cores. A container's CPU quota is the upper limit.
    """
    known = set(threads)
    found = _cores(known) if known else _guess()
    quota, _, period = read(CGROUPS / "cpu.max").partition(" ")
    if found and quota.isdigit() and period.isdigit():
        return max(1, min(found, round(int(quota) / int(period))))
    return found


def _guess() -> int | None:
    known = set(affinity())
    allocated = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if launch.launched_by_mpi() and not allocated.isdigit():
        known |= set(affinity(os.getppid()))
    found = _cores(known) if known else physical() or os.cpu_count()
    if allocated.isdigit():
        per_core = (os.cpu_count() or 1) / (physical() or os.cpu_count() or 1)
        found = max(found or 0, math.ceil(int(allocated) / max(1, per_core)))
    return found


def _cores(threads: Iterable[int]) -> int:
    """Return how many cores some hardware threads belong to; one each if that is unknown."""
    siblings = (read(CPUS / f"cpu{one}/topology/thread_siblings_list") or one for one in threads)
    return len({*map(str, siblings)})


def listed(threads: Iterable[int]) -> str:
    """Return hardware threads in the kernel's list format, such as ``0-3,8``."""
    ends: list[list[int]] = []
    for thread in sorted(threads):
        if ends and thread == ends[-1][1] + 1:
            ends[-1][1] = thread
        else:
            ends.append([thread, thread])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ends)


def count_listed(listed: str) -> int:
    """Return how many hardware threads such a list has; 0 if the text is not a list."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in listed.split(",")]
    except ValueError:
        return 0
    return sum(part[-1] - part[0] + 1 for part in ends)


def cgroups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, the innermost group first.

    In a container, the listed path may be the host's. The root is then the container's own group.
    """
    for line in read("/proc/self/cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if not kinds or controller in kinds.split(","):
            inside = Path(path.lstrip("/"))
            for group in (inside, *inside.parents):
                yield CGROUPS / kinds / group


def memory_available() -> int:
    """Return how many bytes of memory this process may still use.

    This is the host's available memory, or less if a control group of the process limits it.
    """
    import psutil

    left = [psutil.virtual_memory().available]
    for folder in cgroups("memory"):
        for limit, current, given_back in _MEMORY_FILES:
            most, used = read(folder / limit), read(folder / current)
            if most.isdigit() and used.isdigit():
                statistics = dict(map(str.split, read(folder / "memory.stat").splitlines()))
                left.append(int(most) - int(used) + int(statistics.get(given_back, 0)))
    return min(left)


def check_memory(what: str, needed_bytes: float, advice: str) -> None:
    """Raise a UsageError if `what` needs more memory than this process may still use."""
    free = memory_available()
    if needed_bytes > free:
        raise UsageError(
            f"{what} take about {needed_bytes / 1e9:.1f} GB of memory, but only "
            f"{free / 1e9:.1f} GB are free: {advice}"
        )


def forget_peak() -> bool:
    """Reset the peak of this process's resident memory; return whether the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident_bytes() -> tuple[float, float]:
    """Return this process's resident memory and its peak; NaN if unknown.

    Pages that processes share, such as those of libraries, count in full for each process.
    """
    lines = read("/proc/self/status").splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    now, peak = (found.get(name, "nan kB").split()[0] for name in ("VmRSS", "VmHWM"))
    return 1024 * float(now), 1024 * float(peak)


def lengthen_sleeps(seconds: float) -> None:
    """Let sleeps of the main thread last longer, up to that; 0 is the default. Only on Linux."""
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text(f"{seconds * 1e9:.0f}")
