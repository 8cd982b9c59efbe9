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
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpcfl
from hpcfl.system import launch

_PACKAGES = ("numpy", "mpi4py", "h5py", "cryptography")

_VARIABLE_PREFIXES = (
    *("OMPI_", "PRTE_", "PMIX_", "PMI_", "MPICH_", "I_MPI_", "MV2_", "MPI4PY_"),
    *("UCX_", "FI_", "SLURM_", "OMP_", "OPENBLAS_", "MKL_", "HDF5_"),
)
# Slurm passes authentication tokens as SLURM_JWT, and what its plug-ins want as SLURM_SPANK_*.
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASS", "CRED", "AUTH", "JWT", "COOKIE", "SPANK")

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
    *("transport", "ranks", "mpi_library", "mpi_standard", "thread_level"),
    "fault_tolerance",
)

_CPUS = Path("/sys/devices/system/cpu")
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_GIT_SECONDS = 5.0
_TIMER_CALLS = 2000


def capture(mpi_facts: dict[str, Any], hosts: list[str]) -> dict[str, Any]:
    """Return everything that is worth recording about the environment of a run.

    `mpi_facts` are what the communicator knows, and `hosts` the host name of every rank, this one's
    first.
    """
    local = capture_local()
    # In a netlab all hosts are this one, and their ranks share its cores.
    lab = mpi_facts.get("transport") == "netlab"
    here = (len(hosts) if lab else hosts.count(hosts[0])) if hosts else None
    cores = local["cores_usable"]
    unique = list(dict.fromkeys(hosts))
    wall_resolution, wall_overhead = timer_quality(time.perf_counter)
    cpu_resolution, cpu_overhead = timer_quality(time.thread_time)
    return {
        **dict.fromkeys(_MPI_FACTS),
        **mpi_facts,
        "hosts": unique,
        "host_ranks": [hosts.count(host) for host in unique],
        "oversubscription_ratio": here / cores if here and cores else None,
        "wall_timer": f"time.perf_counter: {time.get_clock_info('perf_counter').implementation}",
        "cpu_timer": f"time.thread_time: {time.get_clock_info('thread_time').implementation}",
        "wall_timer_resolution_seconds": wall_resolution,
        "wall_timer_overhead_seconds": wall_overhead,
        "cpu_timer_resolution_seconds": cpu_resolution,
        "cpu_timer_overhead_seconds": cpu_overhead,
        **local,
    }


def capture_local() -> dict[str, Any]:
    """Return the facts about this host and this process that need no MPI."""
    memory = _memory()
    commit, dirty = _git_state(Path(hpcfl.__file__).parent)
    return {
        "host_name": platform.node() or None,
        "cpu_model": _cpu_model(),
        "cores_physical": _physical_cores(),
        "cores_logical": os.cpu_count(),
        "cores_affinity": _affinity(0),
        "cores_usable": usable_cores(),
        "cpu_governor": read(_CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "cpu_turbo": _turbo(),
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "swap_bytes": memory.get("SwapTotal"),
        "swap_used_bytes": _difference(memory.get("SwapTotal"), memory.get("SwapFree")),
        "load_1min": load_1min(),
        "kernel": f"{platform.system()} {platform.release()}".strip() or None,
        "clock_source": read(_CLOCK_SOURCE) or None,
        "python_version": platform.python_version(),
        "hpcfl_version": hpcfl.__version__,
        **{f"{name}_version": package_version(name) for name in _PACKAGES},
        "openssl_version": _openssl_version(),
        "git_commit": commit,
        "git_dirty": dirty,
        **{fact: os.environ.get(name) for fact, name in _SLURM_FACTS.items()},
        "environment_variables": _variables(),
    }


def usable_cores() -> int | None:
    """Return the number of cores that the ranks on this host may use together.

    Launchers bind every rank to cores of its own, so that a rank's own affinity says little: the
    launcher's counts, or what Slurm allocated here, but no more than the container's CPU quota.
    """
    cores = _affinity(0)
    allocated = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if allocated.isdigit():
        cores = max(cores or 0, int(allocated))
    elif launch.launched_by_mpi():
        cores = max(cores or 0, _affinity(os.getppid()) or 0) or None
    quota = _cpu_quota()
    return cores if cores is None or quota is None else max(1, min(cores, round(quota)))


def package_version(distribution: str) -> str | None:
    """Return the version of an installed package without importing it, None if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def load_1min() -> float | None:
    """Return the mean number of runnable processes over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
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


def read(path: str | os.PathLike[str]) -> str:
    """Return a system file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _affinity(process: int) -> int | None:
    try:
        return len(os.sched_getaffinity(process))
    except (AttributeError, OSError):  # macOS has no affinity
        return os.cpu_count()


def _cpu_quota() -> float | None:
    """Return the CPU time per second that the container allows, in cores."""
    quota, _, period = read("/sys/fs/cgroup/cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _cpu_model() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.processor() or None


def _physical_cores() -> int | None:
    # Hardware threads of one core name the same set of threads.
    cores = {read(path) for path in _CPUS.glob("cpu[0-9]*/topology/thread_siblings_list")}
    return len(cores - {""}) or None


def _turbo() -> bool | None:
    no_turbo = read(_CPUS / "intel_pstate/no_turbo")
    boost = read(_CPUS / "cpufreq/boost")
    if no_turbo:
        return no_turbo == "0"
    return boost == "1" if boost else None


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


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """Return commit and whether the package differs from it, if it is run from its repository."""
    root = package.parent
    # An installed package may lie within somebody else's repository.
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return None, None
    changes = _git(root, "status", "--porcelain", "--", package.name)
    return commit, None if changes is None else bool(changes)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            # Reading must not take the lock that the user's own git command may want.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _variables() -> dict[str, str]:
    """Return the environment variables that steer MPI, Slurm and threads, none with a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLE_PREFIXES)
        and not any(word in name.upper() for word in _SECRET_WORDS)
    }
