"""What the tests of the lab share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.netlab import lab, launcher
from hpcfl.netlab.links import Link
from hpcfl.netlab.plan import NETWORKS, LabPlan

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def star(devices=2, uplink=None, downlink=None, server=None, owner="hpcfl-netlab-7-9-"):
    """Return a plan that nothing is built from unless the owner is this process."""
    uplink = uplink or Link(1e8)
    return LabPlan.star(devices, uplink, downlink or uplink, server, owner, NETWORKS[0])


def why_no_lab():
    """Return why this machine cannot have a lab, or cannot start ranks in it."""
    if shutil.which("mpirun", path=ENVIRONMENT["PATH"]) is None:
        return "there is no mpirun"
    try:
        launcher.check_machine()
        with lab.lab(star(1, owner=lab.my_owner_name())):
            return ""
    except HpcflError as error:
        return str(error)


def hpcfl(*arguments):
    """Start the command line, as a user would in a terminal of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpcfl", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
