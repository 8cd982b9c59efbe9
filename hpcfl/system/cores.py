"""Cores and hardware threads of this host, and which of them ranks may use.

A *core* is a physical core, and may run several hardware threads: operating systems, launchers and
Slurm count those as CPUs. A CPU-bound rank needs a core.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from hpcfl.system import launch
from hpcfl.system.kernel import read

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable(threads: Iterable[int] = ()) -> int | None:
    """Return the number of cores that the ranks on this host may use together.

    `threads` are the hardware threads of all their affinities together. One process alone does not
    know the others', and its own says little, as launchers bind every rank to cores of its own:
    without `threads`, its launcher's count, or what Slurm allocated here, in hardware threads. In
    any case no more than the container's CPU quota.
    """
    known = set(threads)
    found = len(_cores(known)) if known else _guess()
    quota = _cpu_quota()
    return found if found is None or quota is None else max(1, min(found, round(quota)))


def physical() -> int | None:
    """Return the number of cores, None if the system does not tell."""
    return len(set(_siblings().values())) or None


def affinity(process: int = 0) -> tuple[int, ...] | None:
    """Return the hardware threads that a process may use, None if the system does not tell."""
    try:
        return tuple(sorted(os.sched_getaffinity(process)))
    except (AttributeError, OSError):  # macOS has no affinity
        return None


def listed(threads: Iterable[int]) -> str:
    """Return hardware threads as the kernel lists them: ``0-3,8``."""
    ends: list[list[int]] = []
    for thread in sorted(threads):
        if ends and thread == ends[-1][1] + 1:
            ends[-1][1] = thread
        else:
            ends.append([thread, thread])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ends)


def count_listed(listed: str) -> int:
    """Return how many hardware threads a list of the kernel's has; 0 if it is none."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in listed.split(",")]
    except ValueError:
        return 0
    return sum(part[-1] - part[0] + 1 for part in ends)


def _guess() -> int | None:
    known = set(affinity() or ())
    allocated = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if launch.launched_by_mpi() and not allocated.isdigit():
        known |= set(affinity(os.getppid()) or ())
    found = len(_cores(known)) or physical() or os.cpu_count()
    if allocated.isdigit():
        threads, cores = os.cpu_count(), physical()
        per_core = threads / cores if threads and cores else 1
        found = max(found or 0, math.ceil(int(allocated) / max(1, per_core)))
    return found


def _cores(threads: set[int]) -> set[str]:
    """Return the cores of some hardware threads; one each where the system does not tell."""
    siblings = _siblings()
    return {siblings.get(thread, str(thread)) for thread in threads}


def _siblings() -> dict[int, str]:
    """Return the core of each hardware thread, named by the list of the threads that it runs."""
    found = {}
    for folder in _CPUS.glob("cpu[0-9]*"):
        found[int(folder.name[3:])] = read(folder / "topology/thread_siblings_list")
    return {thread: together for thread, together in found.items() if together}


def _cpu_quota() -> float | None:
    """Return the CPU time per second that the container allows, in cores."""
    quota, _, period = read(_QUOTA).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
