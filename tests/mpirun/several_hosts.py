"""Runs hpcfl on hosts that are only called so: several_hosts.py FOLDER HOSTS ARGUMENTS.

HOSTS has the name of each rank's host. A rank that imports what looks at a host leaves a file named
after itself in FOLDER.
"""

import platform
import sys
from pathlib import Path

from hpcfl.system import launch

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from killed import main


class Watch:
    """Notes imports, and imports nothing."""

    def find_spec(self, name, *_):
        if name == "hpcfl.system.environment":
            (Path(folder) / f"{rank}.looked").touch()


folder, hosts, *arguments = sys.argv[1:]
rank = launch.guess_rank()
host = hosts.split(",")[rank]
platform.node = lambda: host
sys.meta_path.insert(0, Watch())
main(arguments)
