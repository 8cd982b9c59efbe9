"""Finds, within a job, the option with which srun starts ranks that see each other.

If the process managers of MPI and Slurm do not match, every process that srun starts believes it is
the only rank. A job of 101 ranks would then be 101 jobs of one rank.
"""

from __future__ import annotations

import re
import sys

from hpcfl.errors import HpcflError
from hpcfl.system.doctor import SUM_PROGRAM, find_library, run

_RANKS = 2
_SECONDS = 120.0
# Process managers that MPI libraries may be built with, the most likely first.
_MANAGERS = ("pmix", "pmi2", "cray_shasta")


def find_manager() -> str:
    """Return a value for ``srun --mpi`` with which two ranks see each other."""
    library = find_library()
    if library.error:
        raise HpcflError(f"MPI cannot be loaded: {library.error}; 'hpcfl doctor' says more")
    offered = run(["srun", "--mpi=list"], _SECONDS)
    # Slurm lists them on standard error or output; pmix is the newest of pmix_v4 and pmix_v5.
    names = re.findall(r"^(?:srun: *)?\s*(\w+)$", f"{offered.output}\n{offered.errors}", re.M)
    reasons = []
    for manager in _MANAGERS:
        if manager not in names:
            continue
        two = ("srun", f"--mpi={manager}", f"--ntasks={_RANKS}", "--overcommit", "--cpu-bind=none")
        ran = run([*two, sys.executable, "-c", SUM_PROGRAM], _SECONDS)
        answers = re.findall(r"ranks (\d+)", ran.output)
        if answers == [str(_RANKS)]:
            return manager
        alone = f"each of {_RANKS} ranks sees itself alone"
        reasons.append(f"with --mpi={manager} {alone if '1' in answers else ran.reason}")
    raise HpcflError(
        f"srun cannot start {library.name} here: "
        + ("; ".join(reasons) or f"srun --mpi=list names {', '.join(names) or 'nothing'}")
        + "; use --launcher mpirun"
    )
