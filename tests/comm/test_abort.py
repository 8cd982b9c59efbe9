"""A rank that ends the job ends itself, also where MPI_Abort returns, as it can under MPICH."""

import subprocess
import sys

import pytest

LIMIT_SECONDS = 60
# One rank of three under an MPI whose Abort returns, and whose barrier never ends.
PROGRAM = """
import atexit, os, sys
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from hpcfl.comm import ending, patient


class Comm:
    rank, size = 1, 3

    def Ibarrier(self):
        return None

    def Abort(self, status):
        print(f"abort {status}", flush=True)


patient.wait = lambda *arguments: False
ending.communicator = Comm
ending.TURN_SECONDS = 0.1
atexit.register(print, "the interpreter ended in its own way")
try:
    raise ZeroDivisionError("divided by zero")
except ZeroDivisionError:
    CALL
    raise
"""


@pytest.mark.parametrize(
    ("call", "status", "said"),
    [
        ("ending.crash()", 1, "ZeroDivisionError: divided by zero"),
        ("ending.fail('the disk is full', 7)", 7, "Error: the disk is full"),
    ],
)
def test_a_rank_ends_though_abort_returns(call, status, said):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("CALL", call)],
        env={"PATH": "", "PMI_RANK": "1", "PMI_SIZE": "3", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )

    assert (done.returncode, done.stdout) == (status, f"abort {status}\n")
    assert done.stderr.count(said) == 1
    assert "[rank 1 on " in done.stderr
