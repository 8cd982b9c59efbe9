"""How a job script starts the MPI ranks: by mpirun, or directly by srun."""

from __future__ import annotations

import shlex
import shutil

from hpcfl.errors import UsageError
from hpcfl.system import srun

# Tasks and ranks of the first node with devices.
_RANKS = """\
ranks={ranks}
tasks=${{SLURM_TASKS_PER_NODE%%[!0-9]*}} per_node=${{SLURM_TASKS_PER_NODE%%[!0-9]*}}
"""

_RANKS_BESIDE_SERVER = """\
ranks={ranks}
# The first node is the server's alone; the devices' ranks are spread evenly over the others.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
others=$((${{#nodes[@]}} - 1))
tasks=${{SLURM_TASKS_PER_NODE%%[!0-9]*}} per_node=$(((ranks - 1 + others - 1) / others))
hosts=${{nodes[0]}}:1
for ((node = 1; node <= others; node++)); do
    hosts+=,${{nodes[node]}}:$(((ranks - 1) / others + (node <= (ranks - 1) % others ? 1 : 0)))
done
"""

_CORES = """\
count_cores() {
    local allowed range cpu siblings
    allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
    for range in ${allowed//,/ }; do
        for ((cpu = ${range%-*}; cpu <= ${range#*-}; cpu++)); do
            siblings=$cpu
            if [[ -r /sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list ]]; then
                read -r siblings </sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list
            fi
            echo "$siblings"
        done
    done | sort -u | wc -l
}
# Every rank is bound to a core of its own; hardware threads do not count. Where ranks share cores,
# none is bound, and one that waits must give way.
cores=$(count_cores)
shared=no
if ((ranks > SLURM_NTASKS || per_node > tasks || per_node > cores)); then
    shared=yes
    export OMPI_MCA_mpi_yield_when_idle=1
    echo "$ranks ranks share cores: $cores of them on $(hostname)"
fi
"""

_MPIRUN = """\
version=$(mpirun --version 2>&1 || true)
if [[ $version == *"Open MPI"* || $version == *OpenRTE* ]]; then
    # By slot: as many on every node as Slurm has tasks there. An Open MPI that may oversubscribe
    # by its own settings would otherwise put all of them on the first.
    launch=(mpirun -n "$ranks" --map-by slot --bind-to core)
    if [[ $shared == yes ]]; then
        launch=(mpirun -n "$ranks" --map-by slot:OVERSUBSCRIBE --bind-to none)
    fi
elif [[ $version == *"Intel(R) MPI"* ]]; then
    # Not its mpirun: that is a shell script, which does not pass signals on.
    launch=(mpiexec.hydra -bootstrap slurm -n "$ranks")
    export I_MPI_PIN=1 I_MPI_PIN_DOMAIN=core SLURM_CPU_BIND=none
    if [[ $shared == yes ]]; then
        export I_MPI_PIN=0
    fi
elif [[ $version == *HYDRA* ]]; then
    launch=(mpirun -n "$ranks")
    # Of the srun that starts a proxy on every node: the proxy binds the ranks.
    export SLURM_CPU_BIND=none
    if [[ $shared == no ]]; then
        launch+=(-bind-to core)
    fi
else
    launch=(mpirun -n "$ranks")
fi
"""

_MPIRUN_HOSTS = """\
if [[ ${{launch[*]}} == *--map-by* ]]; then
    launch+=(--host "$hosts")
else
    hosts_file=$(mktemp)
    trap 'rm -f "$hosts_file"' EXIT
    tr , '\n' <<<"$hosts" >"$hosts_file"
    # Without it Intel MPI keeps to Slurm's number of tasks a node.
    export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
    launch+=(-machinefile "$hosts_file")
fi
"""

_SRUN = """\
# Tried with two ranks: where MPI and Slurm do not fit, each rank would run by itself.
manager=$(hpcfl slurm probe{asked})
launch=(srun "--mpi=$manager" --ntasks "$ranks")
if [[ $shared == yes ]]; then
    launch+=(--overcommit --cpu-bind=none)
else
    launch+=(--cpu-bind=cores)
fi
"""

_SRUN_HOSTS = """\
# A node's name for each rank.
SLURM_HOSTFILE=$(mktemp)
trap 'rm -f "$SLURM_HOSTFILE"' EXIT
for host in ${{hosts//,/ }}; do
    for ((rank = 0; rank < ${{host#*:}}; rank++)); do echo "${{host%:*}}"; done
done >"$SLURM_HOSTFILE"
export SLURM_HOSTFILE
launch+=(--distribution=arbitrary)
"""


# One rank for each task.
TASKS = "$SLURM_NTASKS"


def block(launcher: str, ranks: str, manager: str | None, server_node: bool) -> str:
    """Return the lines of a script that set ``launch``, for so many ranks, or a shell's variable.

    `manager` is for ``srun --mpi``, None for what the script finds.
    """
    asked = f" --mpi {shlex.quote(manager)}" if manager else ""
    parts = [(_RANKS_BESIDE_SERVER if server_node else _RANKS).format(ranks=ranks), _CORES]
    parts.append(_MPIRUN if launcher == "mpirun" else _SRUN.format(asked=asked))
    if server_node:
        parts.append((_MPIRUN_HOSTS if launcher == "mpirun" else _SRUN_HOSTS).format())
    return "".join(parts).rstrip("\n")


def choose(asked: str, manager: str | None = None) -> str:
    """Return the launcher that a script is to use.

    srun is refused where it is known that it cannot start MPI, or not with the process manager that
    was asked for; ``"auto"`` is mpirun, and srun only where there is no mpirun but srun can.
    """
    if asked == "mpirun" or (asked == "auto" and shutil.which("mpirun")):
        return "mpirun"
    if shutil.which("srun") is None:
        # Rendered elsewhere, such as on a laptop: the script asks again.
        return "mpirun" if asked == "auto" else "srun"
    names = srun.offered()
    if manager in names if manager else srun.usable(names):
        return "srun"
    if asked == "auto":
        return "mpirun"
    wanted = manager or "pmix, pmi2 or cray_shasta"
    raise UsageError(
        f"srun cannot start MPI here with {wanted}: srun --mpi=list names "
        f"{', '.join(names) or 'nothing'}; use --launcher mpirun"
    )
