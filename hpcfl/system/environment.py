"""The machine, the software and the settings that a measurement was made with.

Facts that the system does not provide are None or missing; this raises no error.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcfl
from hpcfl.system import machine, revision
from hpcfl.system.machine import read

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
_CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_NETWORKS = Path("/sys/class")

# Only variables that change how ranks compute or how messages move are recorded. For Open MPI,
# PRRTE and PMIx, these are the parameters of frameworks that move messages or place ranks. Other
# parameters may hold any command that starts processes, or any variable to pass on.
_STEERS = re.compile(
    r"(OMPI|PRTE|PMIX)_MCA_(accelerator|allocator|bml|btl|coll|common|errmgr|gds|hwloc|memory|mpi"
    r"|mpool|mtl|op|opal|osc|part|patcher|pml|rcache|rmaps|shmem|smsc|threads|timer|topo)(_|$)"
    r"|(MPICH|MPIR_CVAR|I_MPI|MV2|MVP|MPI4PY)_"
    r"|(UCX|UCC|HCOLL|SHARP|FI|PSM2|PSM3|OMP|KMP|GOMP|OPENBLAS|MKL)_"
    r"|(SLURM_MPI_TYPE|SLURM_CPU_FREQ_REQ|HDF5_USE_FILE_LOCKING|LD_PRELOAD|GLIBC_TUNABLES)$"
)
# Exceptions: variables that name a job, a process, a folder, a user or an address, that
# describe the machine or how processes start, that may hold secrets or remarks, or that Python
# libraries set.
_IDENTIFIES = re.compile(
    r"^I_MPI_(INFO_|HYDRA_|ROOT$|MPIRUN|GTOOL)|^KMP_(DUPLICATE_LIB_OK|INIT_AT_FORK)$"
    r"|(^|_)(RANK|RANKID|LOCALID|NODEID|VPID|PID|PGID|JOBID|JOB_ID|STEP_ID|UUID|FD|NAMESPACE"
    r"|HOSTNAME|HOSTFILE|WDIR|PORT|URI\d*|ADDR|ADDRESS)$"
    r"|TMPDIR|SESSION|KVS|_COMM_WORLD_|AGENT|ARGS|USER|ACCOUNT|COMMENT|LOG_FILE"
    r"|TOKEN|KEY|SECRET|PASS|CRED|AUTH|COOKIE|LICENSE",
    re.IGNORECASE,
)


def capture(
    mpi_facts: Mapping[str, Any],
    places: Sequence[tuple[str, Sequence[int]]],
    by_host: Sequence[Mapping[str, Any] | None] = (),
) -> dict[str, Any]:
    """Return the facts about the environment of a run that are recorded.

    `mpi_facts` come from the communicator. `places` has the host and the hardware threads of every
    rank, this rank first. `by_host` has the result of `capture_local` for every host, this host
    first, or None where it is unknown. Without `by_host`, only this host is examined.
    """
    found = list(by_host) or [capture_local()]
    local = found[0] or {}
    names = [host for host, _ in places]
    unique = list(dict.fromkeys(names))
    counts = [names.count(host) for host in unique]
    # All hosts of a netlab are this machine, and their ranks share its cores.
    sharing = [sum(counts)] if mpi_facts.get("transport") == "netlab" else counts
    usable = [None if facts is None else facts["cores_usable"] for facts in found]
    ratios = [ranks / each for ranks, each in zip(sharing, usable, strict=False) if each]
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
        **local,
        "host_facts": _differing(found),
    }


def capture_local(threads: Sequence[int] = ()) -> dict[str, Any]:
    """Return the facts about this host and this process; `threads` as for `machine.usable`."""
    import psutil
    from cryptography.hazmat.backends.openssl.backend import backend

    from hpcfl.crypto import native

    swap, code = psutil.swap_memory(), revision.current()
    model = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return {
        "host_name": platform.node() or None,
        "cpu_model": model[1] if model else platform.processor() or None,
        "cores_physical": machine.physical(),
        "cores_logical": os.cpu_count(),
        "cores_affinity": len(machine.affinity()) or os.cpu_count(),
        "cores_usable": machine.usable(threads),
        "cpu_governor": read(machine.CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "cpu_turbo": _turbo(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": machine.memory_available(),
        "swap_bytes": swap.total,
        "swap_used_bytes": swap.used,
        "load_1min": psutil.getloadavg()[0],
        "kernel": f"{platform.system()} {platform.release()}".strip() or None,
        "clock_source": read(_CLOCK_SOURCE) or None,
        "networks": networks(),
        "python_version": platform.python_version(),
        "hpcfl_version": hpcfl.__version__,
        **{f"{name}_version": importlib.metadata.version(name) for name in _PACKAGES},
        # The OpenSSL inside the package cryptography, which is not Python's.
        "openssl_version": backend.openssl_version_text(),
        **native.facts(),
        "git_commit": code.commit,
        "git_dirty": code.dirty,
        "git_changes": code.changes,
        **{fact: os.environ.get(name) for fact, name in _SLURM_FACTS.items()},
        "environment_variables": steering(os.environ),
    }


def _mapping(homes: Sequence[int]) -> str | None:
    """Return how ranks are mapped to hosts, which are numbered in the order they appear."""
    if not homes:
        return None
    if list(homes) == sorted(homes):
        return "host by host"
    in_turns = all(home == rank % (max(homes) + 1) for rank, home in enumerate(homes))
    return "in turns" if in_turns else ",".join(map(str, homes))


def _binding(places: Sequence[tuple[str, Sequence[int]]]) -> str | None:
    """Return how many hardware threads a rank is bound to, and how many ranks share one at most."""
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


def _turbo() -> bool | None:
    no_turbo = read(machine.CPUS / "intel_pstate/no_turbo")
    boost = read(machine.CPUS / "cpufreq/boost")
    if no_turbo:
        return no_turbo == "0"
    return boost == "1" if boost else None


def networks() -> list[str]:
    """Return the kind and rate, but not the name, of every active network port of this host."""
    found = []
    for port in _NETWORKS.glob("infiniband/*/ports/*"):
        if "ACTIVE" in read(port / "state"):
            found.append(f"{read(port / 'link_layer')} {read(port / 'rate')}".strip())
    for card in _NETWORKS.glob("net/*"):
        # A virtual interface has no device. The kernel's number for Ethernet is 1.
        up = read(card / "operstate") == "up" and (card / "device").exists()
        if up and read(card / "type") == "1":
            speed = read(card / "speed")
            found.append(f"Ethernet {speed} Mbit/s" if speed.isdigit() else "Ethernet")
    found += ["Slingshot" for _ in _NETWORKS.glob("cxi/*")]
    return sorted(found)


def steering(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a measurement; they are equal for equal launches."""
    return {
        name: value
        for name, value in sorted(settings.items())
        if _STEERS.match(name) and not _IDENTIFIES.search(name)
    }
