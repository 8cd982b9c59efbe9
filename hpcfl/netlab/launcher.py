"""Starts Open MPI's ranks over the hosts of a lab: the server's on the first, a device's on each.

mpirun runs on the server's host. For the others it calls what it takes for ssh, which is a script
that enters the host's network namespace and gives it a host name of its own: without one, Open MPI
would take all hosts for the same and use shared memory between them.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.netlab.lab import END_SECONDS, lab
from hpcfl.netlab.plan import LabPlan
from hpcfl.system.launch import NETLAB_VARIABLE, launched_by_mpi

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
# Open MPI 5 starts processes by PRRTE, whose options are used here.
OLDEST_OPEN_MPI = 5

_PR_SET_PDEATHSIG = 1


def hostfile(plan: LabPlan) -> str:
    """Return the text of mpirun's list of hosts: one rank on each, in the order of ranks."""
    return "".join(f"{host.address} slots=1\n" for host in plan.hosts)


def agent(plan: LabPlan) -> str:
    """Return the text of the script that stands for ssh: it is called with a host and a command."""
    cases = "".join(
        f"  {host.address}) namespace={host.namespace} name={host.name} ;;\n"
        for host in plan.devices
    )
    return (
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"{cases}"
        '  *) echo "no host $1 in this lab" >&2; exit 255 ;;\n'
        "esac\n"
        "shift\n"
        # ssh joins its arguments with blanks and gives them to the remote shell: so here.
        'exec ip netns exec "$namespace" unshare --uts sh -c "hostname $name; $*"\n'
    )


def launch_command(plan: LabPlan, mpirun: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `hpcfl` with some arguments on all hosts of a lab."""
    options = {
        "prtemca": {
            "plm": "ssh",
            "plm_ssh_agent": str(plan.folder / "agent"),
            # By default daemons start other daemons: their traffic would cross devices' links.
            "plm_ssh_no_tree_spawn": "1",
            "prte_if_include": plan.network,
        },
        "mca": {
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": plan.network,
            "mpi_yield_when_idle": "1",
        },
    }
    run = [mpirun, "-n", str(len(plan.hosts)), "--hostfile", str(plan.folder / "hosts")]
    run += ["--map-by", "node:OVERSUBSCRIBE", "--bind-to", "none"]
    for kind, settings in options.items():
        for name, value in settings.items():
            run += [f"--{kind}", name, value]
    run += ["-x", NETLAB_VARIABLE, sys.executable, "-m", "hpcfl", *arguments]
    script = f"hostname {plan.server.name}; exec {shlex.join(run)}"
    inside = ["ip", "netns", "exec", plan.server.namespace, "unshare", "--uts"]
    return [*inside, "sh", "-c", script]


def launch_environment(plan: LabPlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of mpirun and, as it is passed on, of all ranks."""
    return {
        **environment,
        NETLAB_VARIABLE: json.dumps(plan.facts()),
        # A lab is root's, which Open MPI refuses unless told twice.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Files of a killed mpirun go with the lab.
        "TMPDIR": str(plan.folder),
    }


def run(plan: LabPlan, arguments: Sequence[str]) -> int:
    """Build a lab, run `hpcfl` with some arguments in it, and return its exit status.

    Its output goes where this process's goes. If this process is interrupted, mpirun is told to
    end its ranks; if it dies, mpirun ends with it.
    """
    check_machine()
    mpirun = check_launcher()
    with lab(plan):
        write_files(plan)
        process = subprocess.Popen(
            launch_command(plan, mpirun, arguments),
            stdin=subprocess.DEVNULL,
            env=launch_environment(plan, os.environ),
            # A terminal's Ctrl-C is for this process alone, which then ends mpirun.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    return status if status >= 0 else 128 - status


def check_machine() -> None:
    """Refuse a machine that cannot have a lab; nothing is changed to find out."""
    if launched_by_mpi():
        raise UsageError("hpcfl netlab starts mpirun by itself: call it without a launcher")
    if platform.system() != "Linux" or os.geteuid() != 0:
        raise UsageError(
            "hpcfl netlab makes network devices, for which it needs Linux and root: "
            'sudo env PATH="$PATH" hpcfl netlab ...'
        )
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UsageError(f"hpcfl netlab needs the command {tool}: install {package}")


def check_launcher() -> str:
    """Return the path of Open MPI's mpirun."""
    from hpcfl.system.doctor import find_launcher

    found = find_launcher()
    version = re.match(r"\d+", found.version) if found else None
    if (
        found is None
        or found.family != "Open MPI"
        or (version is not None and int(version[0]) < OLDEST_OPEN_MPI)
    ):
        raise UsageError(
            f"hpcfl netlab needs the mpirun of Open MPI {OLDEST_OPEN_MPI} or newer first on PATH, "
            "for example that of pip install 'hpcfl[mpi]'; under sudo, pass PATH on"
        )
    return found.path


def write_files(plan: LabPlan) -> None:
    """Write what mpirun reads into the lab's folder."""
    (plan.folder / "hosts").write_text(hostfile(plan), encoding="utf-8")
    script = plan.folder / "agent"
    script.write_text(agent(plan), encoding="utf-8")
    Path.chmod(script, 0o700)


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent does, even if that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
