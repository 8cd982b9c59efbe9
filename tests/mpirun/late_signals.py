"""hpcfl, on rank 1 with a signal when its run is over, and again and again until it has ended.

python late_signals.py NUMBER ARGUMENT...
"""

import atexit
import os
import subprocess
import sys

from hpcfl.cli import main
from hpcfl.system.launch import guess_rank


def rain(number):
    os.kill(os.getpid(), number)
    shell = subprocess.Popen(
        ["sh", "-c", f"echo; while kill -{number} {os.getpid()}; do :; done"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert shell.stdout is not None
    shell.stdout.readline()
    print("this rank lives", file=sys.stderr, flush=True)


signal_number = int(sys.argv.pop(1))
if guess_rank() == 1:
    atexit.register(rain, signal_number)
main()
