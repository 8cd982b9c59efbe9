"""What the lab needs of the machine, and what to do where it is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess

from hpcfl.errors import UsageError
from hpcfl.netlab.links import Link
from hpcfl.system import launch

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
# Open MPI 5 starts processes by PRRTE, whose options are used here.
OLDEST_OPEN_MPI = 5


def check_machine() -> None:
    """Refuse a machine that cannot have a lab; nothing is changed to find out."""
    if launch.launched_by_mpi():
        raise UsageError("hpcfl netlab starts mpirun by itself: call it without a launcher")
    if platform.system() != "Linux":
        raise UsageError(
            f"hpcfl netlab needs Linux's network namespaces, and this is {platform.system()}: "
            "use a Linux machine, or bench's --uplink-mbps for modelled seconds"
        )
    if os.geteuid() != 0:
        raise UsageError(
            "hpcfl netlab makes network devices, for which it must be root: "
            'sudo env PATH="$PATH" hpcfl netlab ...'
        )
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UsageError(f"hpcfl netlab needs the command {tool}: install {package}")


def check_launcher() -> str:
    """Return the path of Open MPI's mpirun."""
    from hpcfl.system.doctor import find_launcher

    found = find_launcher()
    if found is None:
        raise UsageError(
            "hpcfl netlab needs Open MPI's mpirun, and there is none on PATH: "
            "pip install 'hpcfl[mpi]'; under sudo, pass PATH on"
        )
    version = re.match(r"\d+", found.version)
    if found.family != "Open MPI" or (version is not None and int(version[0]) < OLDEST_OPEN_MPI):
        raise UsageError(
            f"hpcfl netlab needs the mpirun of Open MPI {OLDEST_OPEN_MPI} or newer, and "
            f"{found.path} is {found.name}: put another first on PATH, "
            "for example that of pip install 'hpcfl[mpi]'"
        )
    return found.path


def check_kernel(trial: str, link: Link) -> None:
    """Refuse a kernel without what the lab is made of; the caller removes the trial namespace."""
    inside = ["ip", "netns", "exec", trial]
    _try(
        ["ip", "netns", "add", trial],
        "make network namespaces",
        "in a container, start it with --privileged",
    )
    _try(
        [*inside, "ip", "link", "add", "name", "try0", "type", "veth", "peer", "name", "try1"],
        "make pairs of virtual network devices (veth)",
        "load the module: modprobe veth",
    )
    _try(
        [*inside, "ip", "link", "add", "name", "try2", "type", "bridge"],
        "make a bridge",
        "load the module: modprobe bridge",
    )
    for command in link.shape("try0"):
        kind = "tbf" if "tbf" in command else "netem"
        remedy = f"load the module: modprobe sch_{kind}"
        if kind == "netem":
            remedy += "; or leave --latency out"
        _try([*inside, *command], f"shape a link ({kind})", remedy)


def run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with a text as its input, out of reach of a terminal's Ctrl-C.

    That is for this process alone, which then takes the lab down.
    """
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, start_new_session=True
    )


def _try(command: list[str], what: str, remedy: str) -> None:
    done = run(command)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]
        raise UsageError(f"this kernel does not {what}: {reason}; {remedy}")
