"""Runs hpcfl on hosts that are only called so: several_hosts.py FOLDER HOSTS ARGUMENTS.

HOSTS has a letter for each rank's host. A rank that imports what looks at a host leaves a file
named after itself in FOLDER.
"""

import platform
import sys
from pathlib import Path

from hpcfl.__main__ import main
from hpcfl.system import launch


class Watch:
    """Notes imports, and imports nothing."""

    def find_spec(self, name, *_):
        if name == "hpcfl.system.environment":
            (Path(folder) / f"{rank}.looked").touch()


folder, hosts = sys.argv[1:3]
del sys.argv[1:3]
rank = launch.guess_rank()
host = hosts[rank]
platform.node = lambda: host
sys.meta_path.insert(0, Watch())
main()
