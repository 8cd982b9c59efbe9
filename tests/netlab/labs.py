"""What the tests of the lab share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.netlab import lab
from hpcfl.netlab.lab import Link

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def star(devices=2, uplink=None, downlink=None, server=None):
    """Return a lab; nothing is built."""
    uplink = uplink or Link(1e8)
    return lab.Lab([(uplink, downlink or uplink)] * devices, server)


def why_no_lab():
    """Return why this machine cannot have a lab, or cannot start ranks in it."""
    if shutil.which("mpirun", path=ENVIRONMENT["PATH"]) is None:
        return "there is no mpirun"
    try:
        lab.check_machine()
    except HpcflError as error:
        return str(error)
    built = lab.script(star(1), "true", [])
    done = subprocess.run(lab.ISOLATED.split(), input=built, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


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
