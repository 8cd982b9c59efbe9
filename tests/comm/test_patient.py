"""When ranks sleep while they wait: only where a host is crowded and MPI would spin."""

import subprocess
import sys

import pytest

LIMIT_SECONDS = 60
# The server's rank of SIZE, HERE of which are on this host, which has four cores; VENDOR is MPI's.
PROGRAM = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from hpcfl.comm import patient
from hpcfl.system import cores


class Comm:
    rank, size = 0, SIZE

    def Split_type(self, kind):
        assert VENDOR[0] == "MPICH"
        neighbours = Comm()
        neighbours.size = HERE
        return neighbours

    def Free(self):
        pass

    def Iallreduce(self, mine, values, op):
        values |= OTHERS


patient.wait = lambda requests: True
cores.usable = lambda: 4
MPI.get_vendor = lambda: VENDOR
print(patient.needed(Comm()))
"""


@pytest.mark.parametrize(
    ("vendor", "size", "here", "others", "expected"),
    [
        ("MPICH", 5, 5, False, True),
        ("MPICH", 8, 4, False, False),
        # One answer on all ranks: calls of both kinds do not match.
        ("MPICH", 9, 4, True, True),
        ("MPICH", 1, 1, False, False),
        ("Open MPI", 101, 101, False, False),
        ("Intel MPI", 101, 101, False, False),
    ],
)
def test_ranks_sleep_where_a_host_is_crowded_and_mpi_spins(vendor, size, here, others, expected):
    program = f"VENDOR, SIZE, HERE, OTHERS = {(vendor, (1, 0)), size, here, others}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )

    assert done.stdout == f"{expected}\n", done.stderr
