"""Finds, within a job, how srun starts ranks that find each other.

Where the process managers of MPI and Slurm do not fit, srun starts processes that each take
themselves for the only rank, and a job of 101 ranks would be 101 jobs of one.
"""

from __future__ import annotations

import re
import sys

from hpcfl.errors import HpcflError
from hpcfl.system.doctor import SUM_PROGRAM, find_library, run

_RANKS = 2
_SECONDS = 120.0
# Those that MPI libraries may have been built with, the most likely first.
_MANAGERS = ("pmix", "pmi2", "cray_shasta")


def find_manager() -> str:
    """Return what two ranks found each other with, as for ``srun --mpi``."""
    library = find_library()
    if library.error:
        raise HpcflError(f"MPI cannot be loaded: {library.error}; 'hpcfl doctor' says more")
    offered = run(["srun", "--mpi=list"], _SECONDS)
    # Slurm lists on standard error or output; pmix is the newest of pmix_v4 and pmix_v5.
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
