"""How a process ends: normally if all ranks fail together, otherwise by aborting the job."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

from hpcfl.comm.world import communicator
from hpcfl.errors import UsageError
from hpcfl.system import launch

if TYPE_CHECKING:
    from mpi4py import MPI

# Ranks that fail for the same reason fail together, within a time that grows with their number. A
# rank that waits longer for the others failed alone.
TOGETHER_SECONDS, RANKS_A_SECOND = 3.0, 10
# If several ranks fail, but not together, the first one ends the others before they print anything.
TURN_SECONDS, MOST_TURNS = 1.5, 4
LAST_WORDS_SECONDS = 0.3
# The Open MPI programs that start ranks, and how long they take to end the ranks.
LAUNCHERS = ("prterun", "prted", "mpirun", "orted")
LAUNCHER_SECONDS = 5.0


def fail(message: str, status: int) -> NoReturn:
    """End this process with an error message.

    Ranks that fail together print the message once and exit normally. A rank that fails alone
    prints it and ends the whole job.
    """
    said = f"Error: {message}"
    if launch.works_alone():
        print(said, file=sys.stderr)
        sys.exit(status)
    try:
        comm = communicator()
    except UsageError:
        if launch.guess_rank() == 0:
            print(said, file=sys.stderr, flush=True)
        sys.exit(status)
    from hpcfl.comm import faults, patient

    tolerant = launch.survives_deaths() and bool(faults.DEATHS)
    speaker = faults.speaker(comm) if tolerant else 0
    if comm.rank == speaker:
        print(said, file=sys.stderr, flush=True)
    seconds = TOGETHER_SECONDS + comm.size / RANKS_A_SECOND
    if tolerant:
        together = faults.meet(comm, seconds)
    else:
        together = patient.wait([comm.Ibarrier()], None, patient.SELDOM, seconds)
    if not together:
        _end_all(comm, status, "" if comm.rank == speaker else said)
    if tolerant:
        faults.finalize(status)
    sys.exit(status)


def crash() -> None:
    """Print the current exception's traceback and end the whole job, if there are other ranks.

    If the exception comes from the death of another rank, print one sentence instead.
    """
    if "mpi4py.MPI" not in sys.modules:
        return
    comm = communicator()
    if comm.size == 1:
        return
    from hpcfl.comm import faults

    if launch.survives_deaths() and faults.is_death(sys.exc_info()[1]):
        said = "Error: a rank died, and this command cannot continue without it"
    else:
        said = traceback.format_exc().rstrip()
    _end_all(comm, 1, said)


def leave() -> NoReturn:
    """End this process: a device rank that has done its part and has no open files.

    Skip the interpreter's teardown, which takes about a tenth as long as its start.
    """
    if launch.survives_deaths() or "mpi4py.MPI" not in sys.modules:
        sys.exit(0)
    from mpi4py import MPI

    if MPI.get_vendor()[0] != "Open MPI":
        # MPICH 5 kills the job unless it hears at the very end that this rank is done.
        sys.exit(0)
    MPI.Finalize()
    _flush()
    os._exit(0)


def _end_all(comm: MPI.Intracomm, status: int, said: str) -> NoReturn:
    """Print the reason and end all ranks. This one ends even if MPI_Abort returns, as MPICH's can.

    Code after it would print the same again, or wait in MPI_Finalize for ranks that are gone.
    """
    time.sleep(TURN_SECONDS * min(comm.rank, MOST_TURNS))
    if said:
        here = f"[rank {comm.rank} on {platform.node()}]"
        lines = [f"{here} {line}" for line in said.split("\n")]
        print("\n".join(lines), file=sys.stderr)
    _flush()
    # MPICH 4's launcher drops output of this rank that it has not forwarded yet.
    time.sleep(LAST_WORDS_SECONDS)
    if launch.survives_deaths():
        _end_launcher()
    comm.Abort(status)
    os._exit(status)


def _end_launcher() -> None:
    """Terminate the launcher: with ULFM, Open MPI's keeps the other ranks alive after an abort."""
    import psutil

    launchers = (one for one in psutil.Process().parents() if one.name() in LAUNCHERS)
    launcher = next(launchers, None)
    if launcher is not None:
        launcher.terminate()
        time.sleep(LAUNCHER_SECONDS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
