"""The process managers with which Slurm's srun starts ranks of MPI."""

from __future__ import annotations

import re

from hpcfl.errors import HpcflError
from hpcfl.system.doctor.running import run

_LIST_SECONDS = 30.0

# Those that each family of MPI may have been built with, the most likely first.
_OF_FAMILY = {
    "Open MPI": ("pmix", "pmi2"),
    "Cray MPICH": ("cray_shasta", "pmi2", "pmix"),
    "MPICH": ("pmi2", "pmix"),
    "MVAPICH": ("pmi2", "pmix"),
    "Intel MPI": ("pmi2", "pmix"),
}
_ANY = ("pmix", "pmi2", "cray_shasta")


def offered() -> list[str]:
    """Return what ``srun --mpi=list`` names, such as pmix_v4 and none."""
    ran = run(["srun", "--mpi=list"], _LIST_SECONDS)
    # Slurm lists on standard error or output, one a line, "srun: " before it in older versions.
    lines = f"{ran.output}\n{ran.errors}".splitlines()
    if ran.status != 0:
        reason = next((line for line in reversed(lines) if line.strip()), "no reason given")
        raise HpcflError(f"srun --mpi=list failed: {reason}")
    words = [line.removeprefix("srun:").strip() for line in lines]
    return [word for word in words if re.fullmatch(r"[a-z]\w*", word)]


def usable(names: list[str], family: str = "") -> list[str]:
    """Return those of `names` that may start an MPI of a family, or any MPI; the best first."""
    found = []
    for kind in _OF_FAMILY.get(family, _ANY):
        # pmix is the newest that Slurm has; pmix_v4 and pmix_v5 are those by themselves.
        versions = sorted((name for name in names if name.startswith(f"{kind}_v")), reverse=True)
        found += [name for name in (kind, *versions) if name in names][:1]
    return found
