"""Finds, within a job, how srun starts ranks that find each other.

Where the process managers of MPI and Slurm do not fit, srun starts processes that each take
themselves for the only rank, and a job of 101 ranks would be 101 jobs of one.
"""

from __future__ import annotations

import re
import sys

from hpcfl.errors import HpcflError
from hpcfl.system import srun
from hpcfl.system.doctor.mpi import SUM_PROGRAM, find_library
from hpcfl.system.doctor.running import Ran, run

_RANKS = 2
_SECONDS = 120.0


def find_manager(asked: str | None) -> tuple[str, str]:
    """Return what two ranks found each other with, as for ``srun --mpi``, and the MPI they use.

    That is `asked`, or the first that works of those that MPI and Slurm have in common.
    """
    library = find_library()
    if library.implementation is None:
        raise HpcflError(f"MPI cannot be loaded: {library.error}; 'hpcfl doctor' says more")
    names = srun.offered()
    tried = [asked] if asked else srun.usable(names, library.implementation.family)
    reasons = []
    for manager in tried:
        two = ("srun", f"--mpi={manager}", f"--ntasks={_RANKS}", "--overcommit", "--cpu-bind=none")
        ran = run([*two, sys.executable, "-c", SUM_PROGRAM], _SECONDS)
        answers = re.findall(r"ranks (\d+)", ran.output)
        if answers == [str(_RANKS)]:
            return manager, str(library.implementation)
        reasons.append(f"with --mpi={manager} {_reason(ran, answers)}")
    raise HpcflError(
        f"srun cannot start {library.implementation} here: "
        + ("; ".join(reasons) or f"srun --mpi=list names {', '.join(names) or 'nothing'}")
        + "; use --launcher mpirun, or another of srun's with --mpi"
        + _hint(library.implementation.family)
    )


def _reason(ran: Ran, answers: list[str]) -> str:
    if "1" in answers:
        return f"each of {_RANKS} ranks sees itself alone"
    # Warnings come before it.
    errors = (line for line in ran.errors.splitlines() if line.startswith("srun: error: "))
    return f"{_RANKS} ranks fail: {next(errors, ran.reason)[:200]}"


def _hint(family: str) -> str:
    if family == "Intel MPI":
        return ", or let I_MPI_PMI_LIBRARY be the path of Slurm's libpmi2.so"
    return ""
