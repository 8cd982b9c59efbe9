"""Waiting without a core: a communicator for hosts that have more ranks than cores.

A rank that waits in a call of MPI looks without a pause whether it may go on. Open MPI and Intel
MPI give the core away between two looks. MPICH and what is made of it do so rarely or never: with
more ranks than cores, those that wait keep those at work from their cores. Here a rank that waits
sleeps, and looks again at least every millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

# A rank that waits looks after this long, then after twice as long, and so on to the longest. That
# is a compromise (docs/clusters.md): messages of several steps move a step a look, and every
# look takes a core from a rank at work.
SHORTEST_SLEEP_SECONDS = 2e-5
LONGEST_SLEEP_SECONDS = 1e-3
# As `MPI.get_vendor` calls the libraries whose ranks yield while they wait.
YIELDING = ("Open MPI", "Intel MPI")


class Patient:
    """The part of a communicator that hpcfl uses, whose calls sleep until they are complete.

    Methods are called like, and do what, those of `mpi4py.MPI.Intracomm` do; `root` is rank 0.
    Calls of this and of the communicator itself do not match.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        wait([self._comm.Ibcast(buffer, root)])

    def Scatterv(self, layout: Any, received: Any, root: int = 0) -> None:
        wait([self._comm.Iscatterv(layout, received, root)])

    def Gather(self, mine: Any, received: Any, root: int = 0) -> None:
        wait([self._comm.Igather(mine, received, root)])

    def Reduce(self, mine: Any, target: Any, op: MPI.Op, root: int = 0) -> None:
        wait([self._comm.Ireduce(mine, target, op, root)])

    def Allreduce(self, mine: Any, values: Any, op: MPI.Op) -> None:
        wait([self._comm.Iallreduce(mine, values, op)])

    def Alltoall(self, sent: Any, received: Any) -> None:
        wait([self._comm.Ialltoall(sent, received)])

    def Alltoallv(self, sent: Any, received: Any) -> None:
        wait([self._comm.Ialltoallv(sent, received)])

    def Barrier(self) -> None:
        wait([self._comm.Ibarrier()])

    def Send(self, buffer: Any, rank: int, tag: int = 0) -> None:
        wait([self._comm.Isend(buffer, rank, tag)])

    def Recv(self, buffer: Any, rank: int, tag: int = 0) -> None:
        wait([self._comm.Irecv(buffer, rank, tag)])

    def Isend(self, buffer: Any, rank: int, tag: int = 0) -> MPI.Request:
        return self._comm.Isend(buffer, rank, tag)

    def Irecv(self, buffer: Any, rank: int, tag: int = 0) -> MPI.Request:
        return self._comm.Irecv(buffer, rank, tag)

    def Ibarrier(self) -> MPI.Request:
        return self._comm.Ibarrier()

    def Split(self, color: int, key: int) -> MPI.Comm:
        """Split the ranks, those with the same color into a communicator of MPI's own."""
        return self._comm.Split(color, key)


Comm = MPI.Intracomm | Patient


def complete(comm: Comm, requests: Iterable[MPI.Request]) -> None:
    """Wait until all requests are complete, as the ranks of this communicator wait."""
    if isinstance(comm, Patient):
        wait(requests)
    else:
        MPI.Request.Waitall(list(requests))


def wait(requests: Iterable[MPI.Request]) -> None:
    """Wait until all requests are complete, asleep most of the time."""
    pending = list(requests)
    sleep = SHORTEST_SLEEP_SECONDS
    while not MPI.Request.Testall(pending):
        time.sleep(sleep)
        sleep = min(2 * sleep, LONGEST_SLEEP_SECONDS)


def needed(comm: MPI.Intracomm) -> bool:
    """Return whether a host has more ranks than cores, and they would not yield; one answer on all.

    Every rank calls this.
    """
    if comm.size == 1 or MPI.get_vendor()[0] in YIELDING:
        return False
    from hpcfl.system import machine

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    crowded = np.array([neighbours.size > (machine.usable() or 1)])
    neighbours.Free()
    Patient(comm).Allreduce(MPI.IN_PLACE, crowded, MPI.LOR)
    return bool(crowded[0])
