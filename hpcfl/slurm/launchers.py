"""How a job script starts the MPI ranks: by mpirun, or directly by srun."""

from __future__ import annotations

import shutil
import subprocess

from hpcfl.errors import HpcflError, UsageError

_PROBE_SECONDS = 30

# The cores that a node has, and that the job may use there; hardware threads do not count. nproc
# takes OMP_NUM_THREADS for the number of cores.
_COUNT = """\
ranks={ranks}
# Where ranks share cores, none can be bound to one of its own, and one that waits must give way.
cores=$(lscpu --parse=core,socket 2>/dev/null | sort -u | grep -vc '^#' || true)
usable=$(env -u OMP_NUM_THREADS nproc)
cores=$((cores > 0 && cores < usable ? cores : usable))
shared=no
if ((ranks > SLURM_NTASKS || ${{SLURM_TASKS_PER_NODE%%[!0-9]*}} > cores)); then
    shared=yes
    export OMPI_MCA_mpi_yield_when_idle=1
    echo "$ranks ranks share cores: $cores of them on $(hostname)"
fi
"""

BLOCKS = {
    "mpirun": _COUNT
    + """\
launch=(mpirun -n "$ranks")
if [[ $(mpirun --version 2>&1) == *"Open MPI"* ]]; then
    # By slot: as many on every node as Slurm has tasks there. An Open MPI that may oversubscribe
    # by its own settings would otherwise put all of them on the first.
    if [[ $shared == yes ]]; then
        launch+=(--map-by slot:OVERSUBSCRIBE --bind-to none)
    else
        launch+=(--map-by slot)
    fi
fi""",
    "srun": _COUNT
    + """\
if [[ $(srun --mpi=list 2>&1) != *pmix* ]]; then
    echo "this Slurm's srun has no PMIx and cannot start MPI: use --launcher mpirun" >&2
    exit 1
fi
launch=(srun --mpi=pmix --ntasks "$ranks")
if [[ $shared == yes ]]; then
    launch+=(--overcommit --cpu-bind=none)
fi""",
}


def block(launcher: str, ranks: int | None) -> str:
    """Return the lines of a script that set ``launch``, for so many ranks or one for each task."""
    return BLOCKS[launcher].format(ranks="$SLURM_NTASKS" if ranks is None else ranks)


def choose(asked: str) -> str:
    """Return the launcher that a script is to use.

    srun is refused where its PMIx is known to be missing; ``"auto"`` is mpirun, and srun only where
    there is no mpirun but srun has PMIx.
    """
    if asked == "mpirun" or (asked == "auto" and shutil.which("mpirun")):
        return "mpirun"
    if shutil.which("srun") is None:
        # Rendered elsewhere, such as on a laptop: the script asks again.
        return "mpirun" if asked == "auto" else "srun"
    kinds = mpi_kinds()
    if any(kind.startswith("pmix") for kind in kinds):
        return "srun"
    if asked == "auto":
        return "mpirun"
    raise UsageError(
        f"srun cannot start MPI here: srun --mpi=list names {', '.join(kinds) or 'nothing'}, "
        "and Open MPI needs pmix; use --launcher mpirun"
    )


def mpi_kinds() -> list[str]:
    """Return the process managers that ``srun --mpi=list`` names."""
    try:
        done = subprocess.run(
            ["srun", "--mpi=list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HpcflError(f"srun --mpi=list does not answer: {error}") from None
    # Slurm lists on standard error or output, one a line, "srun: " before it in older versions.
    lines = f"{done.stdout}\n{done.stderr}".splitlines()
    if done.returncode != 0:
        reason = next((line for line in reversed(lines) if line.strip()), "no reason given")
        raise HpcflError(f"srun --mpi=list failed: {reason}")
    words = [line.removeprefix("srun:").strip() for line in lines]
    return [word for word in words if word and " " not in word]
