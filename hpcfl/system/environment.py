"""The machine, the software and the settings that a measurement was made with.

Readers of system facts return None, or nothing, for what the system does not tell. None of them
fails, because a measurement is worth more than the description of its environment.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcfl
from hpcfl.system import cgroups, cores, mpisettings, revision
from hpcfl.system.kernel import load_1min, read

_PACKAGES = ("numpy", "mpi4py", "h5py", "cryptography")

_SLURM_FACTS = {
    "slurm_job_id": "SLURM_JOB_ID",
    "slurm_partition": "SLURM_JOB_PARTITION",
    "slurm_nodes": "SLURM_JOB_NUM_NODES",
    "slurm_tasks": "SLURM_NTASKS",
    "slurm_cpus_per_task": "SLURM_CPUS_PER_TASK",
    "slurm_node_list": "SLURM_JOB_NODELIST",
    "slurm_array_job_id": "SLURM_ARRAY_JOB_ID",
    "slurm_array_task_id": "SLURM_ARRAY_TASK_ID",
    "slurm_restart_count": "SLURM_RESTART_COUNT",
    "slurm_cluster": "SLURM_CLUSTER_NAME",
}

_MPI_FACTS = (
    *("transport", "ranks", "mpi_library", "mpi_device", "mpi_standard", "thread_level"),
    "fault_tolerance",
)

_CPUS = Path("/sys/devices/system/cpu")
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_TIMER_CALLS = 2000


def capture(
    mpi_facts: Mapping[str, Any],
    places: Sequence[tuple[str, Sequence[int]]],
    by_host: Sequence[Mapping[str, Any] | None] = (),
) -> dict[str, Any]:
    """Return everything that is worth recording about the environment of a run.

    `mpi_facts` are what the communicator knows; `places` are the host and the hardware threads of
    every rank, this one's first. `by_host` has what `capture_local` found on every host, this one
    first, and None where it is not known; without it, only this host is looked at.
    """
    found = list(by_host) or [capture_local()]
    local = found[0] or {}
    names = [host for host, _ in places]
    unique = list(dict.fromkeys(names))
    counts = [names.count(host) for host in unique]
    # In a netlab all hosts are this one, and their ranks share its cores.
    sharing = [sum(counts)] if mpi_facts.get("transport") == "netlab" else counts
    usable = [None if facts is None else facts["cores_usable"] for facts in found]
    ratios = [ranks / each for ranks, each in zip(sharing, usable, strict=False) if each]
    wall_resolution, wall_overhead = timer_quality(time.perf_counter)
    cpu_resolution, cpu_overhead = timer_quality(time.thread_time)
    return {
        **dict.fromkeys(_MPI_FACTS),
        **mpi_facts,
        "hosts": unique,
        "host_ranks": counts,
        "mapping": _mapping([unique.index(host) for host in names]),
        "binding": _binding(places),
        "oversubscription_ratio": max(ratios, default=None),
        "wall_timer": f"time.perf_counter: {time.get_clock_info('perf_counter').implementation}",
        "cpu_timer": f"time.thread_time: {time.get_clock_info('thread_time').implementation}",
        "wall_timer_resolution_seconds": wall_resolution,
        "wall_timer_overhead_seconds": wall_overhead,
        "cpu_timer_resolution_seconds": cpu_resolution,
        "cpu_timer_overhead_seconds": cpu_overhead,
        **local,
        "host_facts": _differing(found),
    }


def _mapping(homes: Sequence[int]) -> str | None:
    """Return how ranks follow each other on the hosts, which are numbered as they appear."""
    if not homes:
        return None
    hosts = max(homes) + 1
    if list(homes) == sorted(homes):
        return "host by host"
    in_turns = all(home == rank % hosts for rank, home in enumerate(homes))
    return "in turns" if in_turns else ",".join(map(str, homes))


def _binding(places: Sequence[tuple[str, Sequence[int]]]) -> str | None:
    """Return to how many hardware threads ranks are bound, and how many ranks share one at most.

    Which threads those are may be another each time that a batch system allocates some.
    """
    sizes = {len(threads) for _, threads in places}
    if not sizes or 0 in sizes:
        return None
    shared = Counter((host, thread) for host, threads in places for thread in threads)
    low, high = min(sizes), max(sizes)
    each = f"{low}" if low == high else f"{low} to {high}"
    return f"hardware threads a rank: {each}; ranks a thread: at most {max(shared.values())}"


def _differing(found: Sequence[Mapping[str, Any] | None]) -> dict[str, list[Any]] | None:
    """Return the facts in which hosts differ, each with its value on every host."""
    if len(found) == 1:
        return None
    known = [facts or {} for facts in found]
    values = {name: [facts.get(name) for facts in known] for name in known[0]}
    return {name: each for name, each in values.items() if any(v != each[0] for v in each)}


def capture_local(threads: Sequence[int] = ()) -> dict[str, Any]:
    """Return the facts about this host and this process that need no MPI.

    `threads` are the hardware threads that the ranks on this host may use, as in `cores.usable`.
    """
    memory = _memory()
    code = revision.current()
    allowed = cores.affinity()
    return {
        "host_name": platform.node() or None,
        "cpu_model": _cpu_model(),
        "cores_physical": cores.physical(),
        "cores_logical": os.cpu_count(),
        "cores_affinity": os.cpu_count() if allowed is None else len(allowed),
        "cores_usable": cores.usable(threads),
        "cpu_governor": read(_CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "cpu_turbo": _turbo(),
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory_available_bytes(),
        "swap_bytes": memory.get("SwapTotal"),
        "swap_used_bytes": _difference(memory.get("SwapTotal"), memory.get("SwapFree")),
        "load_1min": load_1min(),
        "kernel": f"{platform.system()} {platform.release()}".strip() or None,
        "clock_source": read(_CLOCK_SOURCE) or None,
        "networks": mpisettings.networks(),
        "python_version": platform.python_version(),
        "hpcfl_version": hpcfl.__version__,
        **{f"{name}_version": package_version(name) for name in _PACKAGES},
        "openssl_version": _openssl_version(),
        "git_commit": code.commit,
        "git_dirty": code.dirty,
        "git_changes": code.changes,
        **{fact: os.environ.get(name) for fact, name in _SLURM_FACTS.items()},
        "environment_variables": mpisettings.steering(os.environ),
        "mpi_parameters": mpisettings.parameters(),
    }


def package_version(distribution: str) -> str | None:
    """Return the version of an installed package without importing it, None if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def timer_quality(clock: Callable[[], float]) -> tuple[float | None, float]:
    """Return the seconds of a clock's smallest step, None if it stood still, and of a call."""
    readings = [clock() for _ in range(_TIMER_CALLS)]
    steps = [later - earlier for earlier, later in itertools.pairwise(readings)]
    resolution = min((step for step in steps if step > 0), default=None)
    # The best of several batches: the others were interrupted.
    overhead = min(_seconds_per_call(clock) for _ in range(5))
    return resolution, overhead


def _seconds_per_call(clock: Callable[[], float]) -> float:
    start = time.perf_counter()
    for _ in range(_TIMER_CALLS):
        clock()
    return (time.perf_counter() - start) / _TIMER_CALLS


def _cpu_model() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.processor() or None


def _turbo() -> bool | None:
    no_turbo = read(_CPUS / "intel_pstate/no_turbo")
    boost = read(_CPUS / "cpufreq/boost")
    if no_turbo:
        return no_turbo == "0"
    return boost == "1" if boost else None


def memory_available_bytes() -> int | None:
    """Return how much more memory this process may use on its host, if it is known."""
    known = (_memory().get("MemAvailable"), cgroups.memory_left_bytes())
    return min((each for each in known if each is not None), default=None)


def memory_bytes() -> int | None:
    """Return the memory of this host, if it is known."""
    return _memory().get("MemTotal")


def _memory() -> dict[str, int]:
    # The kernel writes kB and means KiB.
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", read("/proc/meminfo"), re.MULTILINE)
    return {name: int(size) * 1024 for name, size in lines}


def _difference(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _openssl_version() -> str | None:
    """Return the version of the OpenSSL inside the cryptography package, which is not Python's."""
    try:
        from cryptography.hazmat.backends.openssl.backend import backend

        return str(backend.openssl_version_text())
    except Exception:  # whatever a broken binary raises, the record goes without it
        return None
