"""What steers MPI beside the program: variables of the environment, files of parameters, networks.

Readers of system facts return nothing for what the system does not tell; none of them fails.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hpcfl.system.kernel import read

# How the names of Open MPI's parameters begin as variables.
MCA = "OMPI_MCA_"
# Variables that change how ranks compute and how messages move; no others are recorded. Of Open
# MPI, PRRTE and PMIx those are parameters of the frameworks that move messages and place ranks.
# The others start processes, with any command, or pass on any variable.
_STEERS = re.compile(
    r"(OMPI|PRTE|PMIX)_MCA_(accelerator|allocator|bml|btl|coll|common|errmgr|gds|hwloc|memory|mpi"
    r"|mpool|mtl|op|opal|osc|part|patcher|pml|rcache|rmaps|shmem|smsc|threads|timer|topo)(_|$)"
    r"|(MPICH|MPIR_CVAR|I_MPI|MV2|MVP|MPI4PY)_"
    r"|(UCX|UCC|HCOLL|SHARP|FI|PSM2|PSM3|OMP|KMP|GOMP|OPENBLAS|MKL)_"
    r"|(SLURM_MPI_TYPE|SLURM_CPU_FREQ_REQ|HDF5_USE_FILE_LOCKING|LD_PRELOAD|GLIBC_TUNABLES)$"
)
# Of these, those that name a job, a process, a folder, a user or an address, describe the machine,
# say how processes are started, may be secrets or remarks, or are set by libraries of Python.
_IDENTIFIES = re.compile(
    r"^I_MPI_(INFO_|HYDRA_|ROOT$|MPIRUN|GTOOL)|^KMP_(DUPLICATE_LIB_OK|INIT_AT_FORK)$"
    r"|(^|_)(RANK|RANKID|LOCALID|NODEID|VPID|PID|PGID|JOBID|JOB_ID|STEP_ID|UUID|FD|NAMESPACE"
    r"|HOSTNAME|HOSTFILE|WDIR|PORT|URI\d*|ADDR|ADDRESS)$"
    r"|TMPDIR|SESSION|KVS|_COMM_WORLD_|AGENT|ARGS|USER|ACCOUNT|COMMENT|LOG_FILE"
    r"|TOKEN|KEY|SECRET|PASS|CRED|AUTH|COOKIE|LICENSE",
    re.IGNORECASE,
)

_FILES = tuple(
    f"{name}-mca-params{kind}.conf"
    for name in ("openmpi", "prte", "pmix")
    for kind in ("", "-override")
)
# Further files that Open MPI's users name, its version 4 with the first variable.
_NAMING = ("OMPI_MCA_mca_base_param_files", "OMPI_MCA_mca_param_files")
_HOME_FILES = tuple(f".{name}/mca-params.conf" for name in ("openmpi", "prte", "pmix"))
_SYSTEM = Path("/etc")
_MAPS = Path("/proc/self/maps")
_NETWORKS = Path("/sys/class")
_ETHERNET = "1"  # as the kernel numbers kinds of interfaces


def steering(settings: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Return those variables that steer a measurement; equal launches have equal ones.

    Or those parameters of a file, which are variables with the `prefix` `MCA`.
    """
    return {
        name: value
        for name, value in sorted(settings.items())
        if _STEERS.match(prefix + name) and not _IDENTIFIES.search(name)
    }


def parameters() -> dict[str, dict[str, str]]:
    """Return what steers of what the parameter files of Open MPI, PRRTE and PMIx set, by file.

    Those beside the library that is loaded, or of this Python environment, those in the home
    folder, and those that a variable names. `hpcfl.system.mpiconfig` writes to the first ones.
    """
    found = {}
    for name in _FILES:
        path = next((folder / name for folder in _folders() if (folder / name).exists()), None)
        found[name] = {} if path is None else _settings(path)
    with suppress(RuntimeError):  # there is no home folder
        home = Path.home()
        found |= {f"~/{name}": _settings(home / name) for name in _HOME_FILES}
    named = [path for name in _NAMING for path in re.split("[:,]", os.environ.get(name, ""))]
    found |= {path: _settings(Path(path)) for path in named if path}
    return {name: settings for name, settings in found.items() if settings}


def networks() -> list[str]:
    """Return kind and rate of every network port of this host that is up, without their names."""
    found = []
    for port in _NETWORKS.glob("infiniband/*/ports/*"):
        if "ACTIVE" in read(port / "state"):
            found.append(f"{read(port / 'link_layer')} {read(port / 'rate')}".strip())
    for card in _NETWORKS.glob("net/*"):
        # What is virtual has no device.
        up = read(card / "operstate") == "up" and (card / "device").exists()
        if up and read(card / "type") == _ETHERNET:
            speed = read(card / "speed")
            found.append(f"Ethernet {speed} Mbit/s" if speed.isdigit() else "Ethernet")
    found += ["Slingshot" for _ in _NETWORKS.glob("cxi/*")]
    return sorted(found)


def _folders() -> list[Path]:
    library = re.search(r" (/\S*/libmpi\.so\S*)$", read(_MAPS), re.MULTILINE)
    if library is None:
        return [Path(sys.prefix) / "etc"]
    prefix = Path(library[1]).parent.parent
    # A distribution's packages keep their files in one place.
    own = [_SYSTEM / name for name in ("openmpi", "prte", "pmix")]
    return [prefix / "etc", *(own if prefix.is_relative_to("/usr") else [])]


def _settings(path: Path) -> dict[str, str]:
    lines = re.findall(r"^[ \t]*([\w.]+)[ \t]*=[ \t]*(.*?)[ \t]*$", read(path), re.MULTILINE)
    return steering(dict(lines), MCA)
