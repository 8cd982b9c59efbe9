"""Waiting in front of MPI: a communicator for a host that has more ranks than cores.

A rank that waits within a collective polls, and between two polls it gives its core to another
rank. With a hundred ranks on two cores, the core mostly goes to another waiting rank. Here a rank
sleeps in front of a collective until the ranks that it waits for are there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

FOLDER = Path("/dev/shm")  # of files in memory
_LIBC = ctypes.CDLL(None)
# More bytes than a semaphore or a barrier has in any C library.
_BYTES = 128
# Ranks call Alltoallv right after Alltoall, and most of them leave Gather and Reduce early.
_OF_ALL = ("Allreduce", "Alltoall", "Barrier")

POSSIBLE = os.access(FOLDER, os.W_OK) and hasattr(_LIBC, "pthread_barrier_wait")


class Gated:
    """A communicator of ranks on one host, whose `root` is rank 0; all ranks make one together."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        token = np.frombuffer(os.urandom(8), np.uint8).copy()
        comm.Bcast(token, root=0)
        path = FOLDER / f"hpcfl-{token.tobytes().hex()}"
        if self.rank == 0:
            path.touch(mode=0o600, exist_ok=False)
            os.truncate(path, _BYTES * self.size)
        comm.Barrier()
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), _BYTES * self.size)
        starts = range(0, _BYTES * self.size, _BYTES)
        places = [ctypes.byref(ctypes.c_char.from_buffer(memory, start)) for start in starts]
        # A barrier of all ranks, and the semaphores that let the other ranks follow the server.
        self._barrier, *self._others = places
        self._mine = places[self.rank]
        if self.rank == 0:
            # Each is for several processes: 1.
            attributes = ctypes.create_string_buffer(_BYTES)
            _LIBC.pthread_barrierattr_init(attributes)
            _LIBC.pthread_barrierattr_setpshared(attributes, 1)
            _LIBC.pthread_barrier_init(self._barrier, attributes, self.size)
            for each in self._others:
                _LIBC.sem_init(each, 1, 0)
        comm.Barrier()
        if self.rank == 0:
            path.unlink()

    def __getattr__(self, name: str) -> Any:
        """Return a call of the communicator; some collectives have a gate in front of them."""
        call = getattr(self._comm, name)
        if name != "Bcast" and name not in _OF_ALL:
            return call

        def gated(*arguments: Any, **options: Any) -> None:
            if name in _OF_ALL:
                _LIBC.pthread_barrier_wait(self._barrier)
            elif self.rank:
                _LIBC.sem_wait(self._mine)  # a signal ends it early, and the call then polls
            else:
                for each in self._others:
                    _LIBC.sem_post(each)
            call(*arguments, **options)

        return gated
