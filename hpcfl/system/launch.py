"""How this process was started, as far as that is known before MPI is initialised.

At its top it imports only `os` and `sys`, because every rank uses it first, even for a usage error
or ``--help``.
"""

from __future__ import annotations

import os
import sys

# Replaces typing.TYPE_CHECKING, whose import costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# The first one that is set counts. A launcher's own variables come before those of the process
# manager under it, because mpirun inside a Slurm job or step inherits the outer ones.
RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",  # Open MPI
    "MV2_COMM_WORLD_RANK",  # MVAPICH
    "PMI_RANK",  # MPICH, Intel MPI, srun --mpi=pmi2
    "PMIX_RANK",  # srun --mpi=pmix, prun
)
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")

# Slurm's own steps, such as the batch script or an interactive shell, have numbers from here on.
_SLURM_RESERVED_STEPS = 0xFFFFFFF0

# `hpcfl netlab` passes the facts about a rank's links to the rank in this variable, as JSON.
NETLAB_VARIABLE = "HPCFL_NETLAB"

# Open MPI's launcher sets this variable for the ranks of ``mpirun --with-ft ulfm``.
ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"
# A failing rank of such a job waits APART_SECONDS for each lower rank, ALL_GONE_SECONDS at most.
APART_SECONDS, ALL_GONE_SECONDS = 0.05, 3.0

_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def launched_by_mpi() -> bool:
    """Return whether a launcher such as mpirun or srun started this process as an MPI rank.

    A Slurm step of one task counts only if it has a process manager, because an interactive shell
    is such a step as well, and a command typed there is not an MPI job.
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
    """Return whether this job was started with ``mpirun --with-ft ulfm``; MPI does not tell."""
    return os.environ.get(ULFM_VARIABLE, "").lower() in ("1", "true", "yes", "enabled")


def wait_for_turn() -> None:
    """Wait, in a job with fault tolerance, so that failing ranks end one after the other.

    If all ranks end at once, the launcher of Open MPI 5.0.11 hangs in one job of five.
    """
    if survives_deaths():
        import time

        size = guess_size() or 1
        time.sleep(guess_rank() * min(APART_SECONDS, ALL_GONE_SECONDS / size))


_alone = False


def leave_to_first_rank() -> bool:
    """Return whether this rank can exit, because rank 0 runs the command alone, without MPI."""
    global _alone
    _alone = guess_rank() == 0
    return not _alone


def work_together() -> None:
    """Record that the other ranks have not exited, but wait for messages from rank 0."""
    global _alone
    _alone = False


def works_alone() -> bool:
    """Return whether the other ranks have exited, or no launcher started this process."""
    return _alone or not launched_by_mpi()


def again(ranks: int, arguments: list[str]) -> str:
    """Return the command that runs ``hpcfl`` with `arguments` on `ranks` ranks, as in this job."""
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
    """Return the facts that `hpcfl netlab` passed on about this rank's links, if any."""
    text = os.environ.get(NETLAB_VARIABLE)
    if not text:
        return {}
    import json

    return dict(json.loads(text))


def netlab_link() -> dict[str, float]:
    """Return the options that model the links of this netlab; outside of one, no options."""
    facts = netlab_facts()
    values = {n: facts.get(f"netlab_{n}") for n in ("uplink_mbps", "downlink_mbps", "latency_ms")}
    found = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    # The model has one rate for both directions of a helper's link.
    rates = [value for name, value in found.items() if name.endswith("_mbps")]
    return found | ({"helper_mbps": min(rates)} if rates else {})


def terminal_for_progress() -> TextIO | None:
    """Return the stream for a progress bar on this rank, None if no terminal would show it.

    Open MPI gives a rank a pseudo-terminal as standard output even if mpirun's output goes to a
    file, and a pipe as standard error even on a terminal. So the launcher's streams are examined.
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
    """A pipe that a launcher forwards to a terminal; progress bars see it as a terminal."""

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
    """Return whether the launcher, which reads this stream of ours, has a terminal as its own."""
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
