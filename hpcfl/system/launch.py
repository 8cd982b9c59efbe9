"""How this process was started, as far as its surroundings tell before MPI is touched.

Nothing but `os` and `sys` is imported here: every rank asks these questions first of all, also for
a usage error or ``--help``.
"""

from __future__ import annotations

import os
import sys

# As in typing, which costs milliseconds to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# The first that is set counts. A launcher's own variables come before those of the process manager
# under it, because mpirun inside a Slurm job or step inherits the outer ones.
RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",  # Open MPI
    "MV2_COMM_WORLD_RANK",  # MVAPICH
    "PMI_RANK",  # MPICH, Intel MPI, srun --mpi=pmi2
    "PMIX_RANK",  # srun --mpi=pmix, prun
)
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")

# Slurm numbers the batch script, an interactive shell and other steps of its own from here on.
_SLURM_RESERVED_STEPS = 0xFFFFFFF0

# Set by `hpcfl netlab` for the ranks that it starts: the facts about their links, as JSON.
NETLAB_VARIABLE = "HPCFL_NETLAB"

# Set by Open MPI's launcher for the ranks of ``mpirun --with-ft ulfm``.
ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"
# Ranks of such a job that end early do so this long after each other, and all of them within this.
APART_SECONDS, ALL_GONE_SECONDS = 0.05, 3.0

_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def launched_by_mpi() -> bool:
    """Return whether a launcher such as mpirun or srun started this process as an MPI rank.

    A Slurm step of one task counts only if it offers a process manager: an interactive shell is
    such a step as well, and what is typed there is not an MPI job.
    """
    return any(_number(name) is not None for name in RANK_VARIABLES) or _slurm_tasks() > 1


def guess_rank() -> int:
    """Return the rank that this process will have in MPI, 0 if no launcher started it."""
    ranks = [_number(name) for name in RANK_VARIABLES]
    if _slurm_tasks() > 1:
        ranks.append(_number("SLURM_PROCID"))
    return next((rank for rank in ranks if rank is not None), 0)


def guess_size() -> int | None:
    """Return the number of ranks that were started together, None if the launcher does not say."""
    if not launched_by_mpi():
        return None
    sizes = [_number(name) for name in SIZE_VARIABLES]
    return next((size for size in sizes if size), _slurm_tasks() or None)


def survives_deaths() -> bool:
    """Return whether this job was started with ``mpirun --with-ft ulfm``.

    MPI itself does not tell.
    """
    return os.environ.get(ULFM_VARIABLE, "").lower() in ("1", "true", "yes", "enabled")


def wait_for_turn() -> None:
    """Let the ranks of such a job that end with a status other than 0 do so one after the other.

    Where all do at once, the launcher of Open MPI 5.0.11 hangs in one job of five.
    """
    if survives_deaths():
        import time

        size = guess_size() or 1
        time.sleep(guess_rank() * min(APART_SECONDS, ALL_GONE_SECONDS / size))


_alone = False


def leave_to_first_rank() -> bool:
    """Return whether this rank can go: a command of one process is left to rank 0, without MPI."""
    global _alone
    _alone = guess_rank() == 0
    return not _alone


def work_together() -> None:
    """Take note that the others have not left, but wait for what rank 0 tells them."""
    global _alone
    _alone = False


def works_alone() -> bool:
    """Return whether this rank stayed where the others left, or was started without others."""
    return _alone or not launched_by_mpi()


def again(ranks: int, arguments: list[str]) -> str:
    """Return the command that runs ``hpcfl`` with some arguments on as many ranks as this job."""
    import shlex

    typed = shlex.join(arguments)
    if netlab_facts():
        return f"hpcfl netlab ... -- {typed}"
    if ranks == 1:
        return f"hpcfl {typed}"
    if _slurm_tasks() == ranks and _number(RANK_VARIABLES[0]) is None:
        return f"srun -n {ranks} hpcfl {typed}"
    tolerant = "--with-ft ulfm " if survives_deaths() else ""
    return f"mpirun {tolerant}-n {ranks} hpcfl {typed}"


def netlab_facts() -> dict[str, float | int | str | None]:
    """Return what `hpcfl netlab` says about this rank's links, nothing outside of a lab."""
    text = os.environ.get(NETLAB_VARIABLE)
    if not text:
        return {}
    import json

    return dict(json.loads(text))


def netlab_link() -> dict[str, float]:
    """Return the options that model the links of a lab, nothing outside of one."""
    facts = netlab_facts()
    values = {n: facts.get(f"netlab_{n}") for n in ("uplink_mbps", "downlink_mbps", "latency_ms")}
    found = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    # A helper's link is modelled as wide both ways.
    rates = [value for name, value in found.items() if name.endswith("_mbps")]
    return found | ({"helper_mbps": min(rates)} if rates else {})


def terminal_for_progress() -> TextIO | None:
    """Return the stream for a progress bar on this rank, None where no person is looking.

    Open MPI gives a rank a pseudo-terminal as standard output even when its own output goes to a
    file, and a pipe as standard error even on a terminal. So the launcher's streams are looked at.
    """
    stream: TextIO | None = sys.stderr
    if stream is None or stream.closed or guess_rank() != 0:
        return None
    if stream.isatty():
        return stream
    if launched_by_mpi() and _forwarded_to_terminal(2):
        return _ForwardedTerminal(stream)  # type: ignore[return-value]
    return None


class _ForwardedTerminal:
    """A stream that is a pipe by itself, but ends at a terminal; progress bars ask for that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def output_is_watched() -> bool:
    """Return whether standard output, or that of the launcher, goes to a terminal."""
    if launched_by_mpi():
        return _forwarded_to_terminal(1)
    return sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()


def _forwarded_to_terminal(descriptor: int) -> bool:
    """Return whether the process that reads one of our streams has a terminal as its own."""
    import psutil

    try:
        ours = os.readlink(f"/proc/self/fd/{descriptor}")
        if ours.startswith(("pipe:", "socket:", "/dev/pts/")):
            for parent in psutil.Process().parents():
                theirs = os.readlink(f"/proc/{parent.pid}/fd/{descriptor}")
                # A script between the launcher and us has the same pipe as we have.
                if theirs != ours:
                    return theirs.startswith(_TERMINALS)
    except (OSError, psutil.Error):
        pass
    return False


def _slurm_tasks() -> int:
    """Return the number of tasks of the srun step that this process belongs to, 0 outside one."""
    step = _number("SLURM_STEP_ID")
    if step is None or step >= _SLURM_RESERVED_STEPS or _number("SLURM_PROCID") is None:
        return 0
    return _number("SLURM_STEP_NUM_TASKS") or _number("SLURM_NTASKS") or 0


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None
