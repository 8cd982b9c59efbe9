"""Waiting without a core: a communicator for hosts that have more ranks than cores.

Ranks that wait in a call of MPI spin. Open MPI and Intel MPI yield between two looks; MPICH and
what is made of it do so rarely or never, and with more ranks than cores those that wait keep those
at work from their cores. Here a rank that waits sleeps, and looks again every millisecond or more
often.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI


class Pace(NamedTuple):
    """For which share of the time that it has waited a rank sleeps between two looks."""

    share: float
    shortest_seconds: float
    longest_seconds: float


# A compromise (docs/clusters.md): messages of several steps move a step a look, and every look
# takes a core from a rank at work.
OFTEN = Pace(1.0, 2e-5, 1e-3)
# Outside timed regions: a barrier takes a look for each of its steps.
SELDOM = Pace(0.02, 0.005, 0.05)
# As `MPI.get_vendor` calls the libraries whose ranks yield while they wait.
YIELDING = ("Open MPI", "Intel MPI")


class Patient:
    """A communicator whose calls sleep until they are complete; `root` is rank 0.

    Calls of this and of the communicator itself do not match.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size

    def __getattr__(self, name: str) -> Any:
        """Return a call such as ``Bcast``, which begins ``Ibcast`` and sleeps, or one that begins.

        ``Split`` is that of the communicator, and makes one of MPI's own.
        """
        if name.startswith("I") or name == "Split":
            return getattr(self._comm, name)
        begin = getattr(self._comm, f"I{name.lower()}")

        def call(*arguments: Any, **options: Any) -> None:
            wait([begin(*arguments, **options)])

        return call


Comm = MPI.Intracomm | Patient


def complete(
    comm: Comm, requests: list[MPI.Request], statuses: list[MPI.Status] | None = None
) -> None:
    """Wait until all requests are complete, as the ranks of this communicator wait."""
    if isinstance(comm, Patient):
        wait(requests, statuses)
    else:
        MPI.Request.Waitall(requests, statuses or None)


def wait(
    requests: list[MPI.Request],
    statuses: list[MPI.Status] | None = None,
    pace: Pace = OFTEN,
    limit_seconds: float = float("inf"),
) -> bool:
    """Wait until all requests are complete, asleep most of the time; return whether they are."""
    begin = time.monotonic()
    while not MPI.Request.Testall(requests, statuses or None):
        waited = time.monotonic() - begin
        if waited > limit_seconds:
            return False
        time.sleep(min(max(pace.shortest_seconds, pace.share * waited), pace.longest_seconds))
    return True


def needed(comm: MPI.Intracomm) -> bool:
    """Return whether ranks of a host must sleep to let others work; every rank calls this.

    One answer on all: there are more ranks than cores somewhere, and they would not yield.
    """
    if comm.size == 1 or MPI.get_vendor()[0] in YIELDING:
        return False
    from hpcfl.system import machine

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    crowded = np.array([neighbours.size > (machine.usable() or 1)])
    neighbours.Free()
    Patient(comm).Allreduce(MPI.IN_PLACE, crowded, MPI.LOR)
    return bool(crowded[0])
