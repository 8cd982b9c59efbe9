"""Waiting without a core: a communicator for hosts that have more ranks than cores.

Ranks that wait in an MPI call spin. Open MPI and Intel MPI yield the core between two polls. MPICH
and its derivatives yield rarely or never, so with more ranks than cores the waiting ranks take
cores from the working ones. Here a waiting rank sleeps, and polls at least once a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcfl.comm.gates import POSSIBLE, Gated
from hpcfl.system import launch


class Pace(NamedTuple):
    """How long a rank sleeps between two polls, as a share of the time it has waited so far."""

    share: float
    shortest_seconds: float
    longest_seconds: float


# A compromise (docs/clusters.md): a collective of several steps advances one step per poll, and
# every poll takes a core from a working rank.
OFTEN = Pace(1.0, 2e-5, 1e-3)
# For use outside timed regions: a barrier takes one poll for each of its steps.
SELDOM = Pace(0.02, 0.005, 0.05)
# The libraries whose ranks yield while they wait, as named by `MPI.get_vendor`.
YIELDING = ("Open MPI", "Intel MPI")


class Patient:
    """A communicator whose calls sleep until they are complete; `root` is rank 0.

    Its calls do not match calls of the communicator that it wraps.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size

    def __getattr__(self, name: str) -> Any:
        """Return a call such as ``Bcast``, which begins ``Ibcast`` and then sleeps.

        Nonblocking calls and ``Split`` are those of the wrapped communicator.
        """
        if name.startswith("I") or name == "Split":
            return getattr(self._comm, name)
        begin = getattr(self._comm, f"I{name.lower()}")

        def call(*arguments: Any, **options: Any) -> None:
            wait([begin(*arguments, **options)])

        return call


Comm = MPI.Intracomm | Patient | Gated


def complete(
    comm: Comm, requests: list[MPI.Request], statuses: list[MPI.Status] | None = None
) -> None:
    """Wait until all requests are complete, asleep if the communicator is `Patient`."""
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


def asleep(comm: MPI.Intracomm) -> Callable[[MPI.Intracomm], Comm] | None:
    """Return what makes a communicator whose waiting ranks sleep, on all ranks that call this.

    None if no host has more ranks than cores, or if it suffices that the library yields.
    """
    if comm.size == 1:
        return None
    from hpcfl.system import machine

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    here = neighbours.size
    neighbours.Free()
    found = np.array([here > (machine.usable() or 1), here < comm.size])
    Patient(comm).Allreduce(MPI.IN_PLACE, found, MPI.LOR)
    crowded, several_hosts = found.tolist()
    if crowded and MPI.get_vendor()[0] not in YIELDING:
        return Patient
    # Gates are in the memory of one host, and keep those asleep that wait for a dead rank.
    gates = POSSIBLE and not (several_hosts or launch.survives_deaths() or launch.netlab_facts())
    return Gated if crowded and gates else None
