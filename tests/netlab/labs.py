"""What the tests of the lab share."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.netlab import lab, requirements
from hpcfl.netlab.links import Link
from hpcfl.netlab.plan import NETWORKS, LabPlan

BIN = Path(sys.executable).parent


def star(devices=2, uplink=None, downlink=None, server=None, owner="hpcfl-netlab-7-9-"):
    """Return a plan that nothing is built from unless the owner is this process."""
    uplink = uplink or Link(1e8)
    return LabPlan.star(devices, uplink, downlink or uplink, server, owner, NETWORKS[0])


def left_behind():
    """Return namespaces, folders and processes of labs of processes that are no more."""
    owners = {name for name in lab._names() if not _runs(name)}
    return sorted(owners)


def _runs(name):
    from hpcfl.netlab.plan import owner_of

    process, start = owner_of(name) or (0, 0)
    return process != os.getpid() and lab.start_ticks(process) == start


def why_no_lab(link=None):
    """Return why this machine cannot have a lab with such links, empty if it can."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "needs Linux and root"
    owner = lab.my_owner_name()
    try:
        requirements.check_machine()
        requirements.check_kernel(f"{owner}try", link or Link(1e8))
    except HpcflError as error:
        return str(error)
    finally:
        if shutil.which("ip"):
            lab.remove(owner)
    return ""


def why_no_mpi():
    """Return why ranks cannot be started in a lab, empty if they can."""
    if reason := why_no_lab():
        return reason
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{BIN}{os.pathsep}{path}"
    try:
        requirements.check_launcher()
    except HpcflError as error:
        return str(error)
    finally:
        os.environ["PATH"] = path
    return ""


def hpcfl(*arguments):
    """Start the command line, as a user would in a terminal of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpcfl", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        start_new_session=True,
    )
