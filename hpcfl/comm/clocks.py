"""Compares the clocks of hosts, so that the times noted by all ranks lie on one axis.

Ranks on one host read the same clock. The server sends some messages to the first rank of every
other host, which answers with its time. The fastest exchange counts (Cristian 1989): its middle is
taken as the time of the answer, with an uncertainty of half the exchange.
"""

from __future__ import annotations

import platform
import time
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm.patient import Comm
from hpcfl.comm.placement import SERVER_RANK
from hpcfl.system.machine import read

EXCHANGES = 20
_NAME_BYTES = 128
# Tells machines with the same name apart.
_BOOT = "/proc/sys/kernel/random/boot_id"
_TAG = 11


class Offset(NamedTuple):
    """The seconds to add to a rank's clock to get the server's, and their uncertainty."""

    seconds: float
    uncertainty_seconds: float


def first_of_hosts(comm: Comm, host: str | None = None) -> NDArray[np.int64]:
    """Return the first rank on the host of each rank, shape (ranks,); all ranks call this.

    `host` replaces the name of this rank's host.
    """
    names = np.zeros((comm.size, _NAME_BYTES), np.uint8)
    name = (read(_BOOT) + (host or platform.node())).encode()[:_NAME_BYTES]
    names[comm.rank, : len(name)] = np.frombuffer(name, np.uint8)
    comm.Allreduce(MPI.IN_PLACE, names, MPI.MAX)
    _, firsts, hosts = np.unique(names, axis=0, return_index=True, return_inverse=True)
    return firsts[hosts.reshape(-1)]


def compare(comm: Comm, first_of: NDArray[np.int64]) -> Offset:
    """Return the offset of this rank's clock; all ranks call this, after `first_of_hosts`."""
    offsets = np.zeros((comm.size, 2))
    others = sorted({*first_of.tolist()} - {SERVER_RANK})
    for rank in others:
        if comm.rank == SERVER_RANK:
            offsets[rank] = _ask(comm, rank)
        elif comm.rank == rank:
            _answer(comm)
    if others:
        comm.Bcast(offsets, root=SERVER_RANK)
    return Offset(*offsets[first_of[comm.rank]].tolist())


def _ask(comm: Comm, rank: int) -> Offset:
    answer = np.empty(1)
    found = []
    for _ in range(EXCHANGES):
        begin = time.perf_counter()
        comm.Send(answer, rank, _TAG)
        comm.Recv(answer, rank, _TAG)
        end = time.perf_counter()
        found.append((end - begin, (begin + end) / 2 - float(answer[0])))
    elapsed, offset = min(found)
    return Offset(offset, elapsed / 2)


def _answer(comm: Comm) -> None:
    message = np.empty(1)
    for _ in range(EXCHANGES):
        comm.Recv(message, SERVER_RANK, _TAG)
        message[0] = time.perf_counter()
        comm.Send(message, SERVER_RANK, _TAG)
