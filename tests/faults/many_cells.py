"""Cells of many sizes in one launch, with the ranks of a world; test_ulfm starts it.

Its first argument is a list, as JSON, of ``[rank, cell, point]``: who dies in which cell, where:
``inside`` its only operation, or as it is ``freed``, when all have agreed that nobody is dead. If
it has a second one, the folder of a sweep, that is the last cell. Rank 0 prints, as JSON, how many
of the communicators that it made were there after each cell, and how many devices each reached.
"""

import json
import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import hpcfl
from hpcfl.comm import world as worlds

SIZES = [5, 2, 3, 1, 9, 4, 5, 2] * 3
RANK = MPI.COMM_WORLD.rank
deaths = {(cell, point) for victim, cell, point in json.loads(sys.argv[1]) if victim == RANK}
there, now = 0, -1


def die_if_told(point):
    if (now, point) in deaths:
        os.kill(os.getpid(), signal.SIGKILL)


class Counted(MPI.Intracomm):
    """Counts the communicators that this rank made and has not freed."""

    def Dup(self):
        return _made(super().Dup())

    def Split(self, color, key):
        return _made(super().Split(color, key))

    def Shrink(self):
        return _made(super().Shrink())

    def Free(self):
        global there
        die_if_told("freed")
        super().Free()
        there -= 1


def _made(comm):
    global there
    there += comm != MPI.COMM_NULL
    return comm if comm == MPI.COMM_NULL else Counted(comm)


MPI.Intracomm = Counted
world = worlds._world = worlds.World(Counted(MPI.COMM_WORLD))
after, reached = [], []
for now, devices in enumerate(SIZES):
    transport = world.transport(devices, tolerant=now % 4 != 3)
    if transport is not None:
        die_if_told("inside")
        total = transport.sum_to_server(np.array([len(transport.local_devices)]))
        reached += [] if total is None else total.tolist()
    world.settle(None)
    after.append(there)
for folder in sys.argv[2:]:
    grid = {"protocol": "fedavg", "devices": [1, 3, 2], "dim": 9, "rounds": 1, "dropout": 0.0}
    hpcfl.sweep(grid, output=folder)
    after.append(there)
if world.rank == 0:
    print(json.dumps({"after": after, "reached": reached}), flush=True)
if world.tolerant:
    os._exit(0)
