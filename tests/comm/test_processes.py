"""What MPI's answers make of a rank, each in a process of its own with an MPI that is made up."""

import subprocess
import sys

import pytest

LIMIT_SECONDS = 60
MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from hpcfl.comm import ending, patient
"""
# One rank of three under an MPI whose Abort returns, as MPICH's can, and whose barrier never ends.
ENDING = """
import atexit


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
# The server's rank of SIZE, HERE of which are on this host, which has four cores; VENDOR is MPI's.
WAITING = """
import numpy as np

from hpcfl.system import machine


class Comm:
    rank, size = 0, SIZE

    def Split_type(self, kind):
        neighbours = Comm()
        neighbours.size = HERE
        return neighbours

    def Free(self):
        pass

    def Iallreduce(self, mine, values, op):
        values |= np.array([OTHERS, HERE < SIZE])


patient.wait = lambda requests: True
machine.usable = lambda: 4
MPI.get_vendor = lambda: VENDOR
found = patient.asleep(Comm())
print(found and found.__name__)
"""
# One rank alone at its gates.
GATES = """
import sys
from pathlib import Path

from hpcfl.comm import gates


class Comm:
    rank, size, calls = 0, 1, []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append(name)


gates.FOLDER = Path(sys.argv[1])
found = gates.Gated(Comm())
begun = len(Comm.calls)
found.Barrier()
found.Bcast(None, root=0)
found.Send(None)
print(Comm.calls[begun:], [*gates.FOLDER.glob("*")])
"""


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", MPI + program, *arguments],
        env={"PATH": "", "PMI_RANK": "1", "PMI_SIZE": "3", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


@pytest.mark.parametrize(
    ("call", "status", "said"),
    [
        ("ending.crash()", 1, "ZeroDivisionError: divided by zero"),
        ("ending.fail('the disk is full', 7)", 7, "Error: the disk is full"),
    ],
)
def test_a_rank_ends_though_abort_returns(call, status, said):
    done = run(ENDING.replace("CALL", call))

    assert (done.returncode, done.stdout) == (status, f"abort {status}\n")
    assert done.stderr.count(said) == 1
    assert "[rank 1 on " in done.stderr


@pytest.mark.parametrize(
    ("vendor", "size", "here", "others", "expected"),
    [
        ("MPICH", 5, 5, False, "Patient"),
        # One answer on all ranks: calls of different kinds do not match.
        ("MPICH", 9, 4, True, "Patient"),
        ("Open MPI", 101, 101, False, "Gated"),
        # Gates are in the memory of one host.
        ("Open MPI", 9, 4, True, "None"),
        # A rank with a core of its own polls, which is faster.
        ("Open MPI", 4, 4, False, "None"),
        ("MPICH", 4, 4, False, "None"),
    ],
)
def test_ranks_sleep_where_a_host_is_crowded(vendor, size, here, others, expected):
    about = f"VENDOR, SIZE, HERE, OTHERS = {(vendor, (1, 0)), size, here, others}\n"
    done = run(about + WAITING)

    assert done.stdout == f"{expected}\n", done.stderr


def test_gates_let_calls_through_and_leave_no_file(tmp_path):
    done = run(GATES, tmp_path)

    assert done.stdout == "['Barrier', 'Bcast', 'Send'] []\n", done.stderr
