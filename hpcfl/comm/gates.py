"""Waiting in front of MPI: a communicator for a host that has more ranks than cores.

A rank that waits within a collective polls, and between two polls it gives its core to another
rank. With a hundred ranks on two cores, the core mostly goes to another waiting rank. Here a rank
sleeps in front of a collective until the ranks that it waits for are there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcfl.comm.placement import SERVER_RANK

_LIBC = ctypes.CDLL(None)
# More bytes than a semaphore or a barrier has in any C library.
_BYTES = 128
_SHARED = 1
# Ranks call Alltoallv right after Alltoall, and most of them leave Gather and Reduce early.
FOLDER = Path("/dev/shm")  # of files in memory
_FROM_SERVER = ("Bcast",)
_OF_ALL = ("Allreduce", "Alltoall", "Barrier")


class Gated:
    """A communicator of ranks with `memory` in common; `root` is rank 0.

    The memory, shape (ranks, _BYTES), holds a barrier of all ranks in the place of rank 0, and in
    that of every other rank the semaphore that lets the rank follow the server.
    """

    def __init__(self, comm: MPI.Intracomm, memory: mmap.mmap) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._places = [
            ctypes.byref(ctypes.c_char.from_buffer(memory, _BYTES * rank))
            for rank in range(self.size)
        ]

    def open(self) -> None:
        """Set up the memory; the server calls this before any rank uses it."""
        barrier, *semaphores = self._places
        attributes = ctypes.create_string_buffer(_BYTES)
        _LIBC.pthread_barrierattr_init(attributes)
        _LIBC.pthread_barrierattr_setpshared(attributes, _SHARED)
        _LIBC.pthread_barrier_init(barrier, attributes, self.size)
        for each in semaphores:
            _LIBC.sem_init(each, _SHARED, 0)

    def __getattr__(self, name: str) -> Any:
        """Return a call of the communicator, with a gate in front of it if it is a collective."""
        call = getattr(self._comm, name)
        if name not in (*_FROM_SERVER, *_OF_ALL):
            return call

        def gated(*arguments: Any, **options: Any) -> None:
            if name in _OF_ALL:
                _LIBC.pthread_barrier_wait(self._places[SERVER_RANK])
            elif self.rank != SERVER_RANK:
                _LIBC.sem_wait(self._places[self.rank])
            else:
                for each in self._places[1:]:
                    _LIBC.sem_post(each)
            call(*arguments, **options)

        return gated


def gated(comm: MPI.Intracomm) -> MPI.Intracomm | Gated:
    """Return a communicator with gates, or the same if its ranks can have no memory in common.

    All ranks call this.
    """
    token = np.frombuffer(os.urandom(8), np.uint8).copy()
    comm.Bcast(token, root=SERVER_RANK)
    path, size = FOLDER / f"hpcfl-{token.tobytes().hex()}", _BYTES * comm.size
    found = None
    # The server makes the file before the others look for it.
    for turn in (comm.rank == SERVER_RANK, comm.rank != SERVER_RANK):
        if turn:
            with suppress(OSError):
                flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if comm.rank == SERVER_RANK else 0)
                file = os.open(path, flags, 0o600)
                os.truncate(file, size)
                found = Gated(comm, mmap.mmap(file, size))
                os.close(file)
                if comm.rank == SERVER_RANK:
                    found.open()
        comm.Barrier()
    together = np.array([found is not None])
    comm.Allreduce(MPI.IN_PLACE, together, MPI.LAND)
    if comm.rank == SERVER_RANK:
        path.unlink(missing_ok=True)
    return found if found is not None and together[0] else comm
