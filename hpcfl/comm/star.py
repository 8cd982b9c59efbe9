"""Collectives for ranks that each have a narrow link of their own to the server.

MPI libraries broadcast and reduce along trees, and receive one sender's large message after the
other's. Between devices with links of their own, the first moves a message through links of devices
that it does not concern, and the second leaves all links but one idle. Here the server exchanges
messages with all devices directly and at once.

Such ranks usually share a machine, far more of them than it has cores, and rounds were slower with
MPI's own calls: here a rank that waits sleeps, as in :mod:`hpcfl.comm.patient`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm.patient import Patient, wait

SERVER_RANK = 0
TAG = 7
# The server's buffers of one reduction together.
BUFFER_BYTES = 1 << 28


class Star(Patient):
    """The part of a communicator that `MpiTransport` uses, with rank 0 in the middle.

    Methods are called like, and do what, those of `mpi4py.MPI.Intracomm` do; `root` is rank 0. No
    one else sends messages with `TAG` from rank to rank on the communicator.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self._others = range(1, comm.size)

    def Bcast(self, buffer: Any, root: int = SERVER_RANK) -> None:
        """Send the server's buffer to every rank."""
        if self.rank == root:
            wait(self._comm.Isend(buffer, rank, TAG) for rank in self._others)
        else:
            wait([self._comm.Irecv(buffer, root, TAG)])

    def Scatterv(self, layout: Any, received: Any, root: int = SERVER_RANK) -> None:
        """Send each rank its part of the server's bytes."""
        mine, kind = received
        if self.rank != root:
            if mine.size:
                wait([self._comm.Irecv(received, root, TAG)])
            return
        sent, counts, _ = layout
        parts = _parts(sent, counts)
        wait(
            self._comm.Isend([parts[rank], kind], rank, TAG)
            for rank in self._others
            if parts[rank].size
        )
        mine[:] = parts[root]

    def Reduce(
        self, mine: NDArray[Any], target: NDArray[Any] | None, op: MPI.Op, root: int = SERVER_RANK
    ) -> None:
        """Combine the ranks' elements at the server, which alone computes."""
        at_once = max(1, BUFFER_BYTES // max(1, len(self._others) * mine.itemsize))
        if target is not None and self.rank == root:
            target[:] = mine
        for start in range(0, mine.size, at_once):
            part = slice(start, start + at_once)
            if self.rank != root or target is None:
                wait([self._comm.Isend(mine[part], root, TAG)])
                continue
            rows = np.empty((len(self._others), target[part].size), mine.dtype)
            wait(self._comm.Irecv(rows[rank - 1], rank, TAG) for rank in self._others)
            for row in rows:
                op.Reduce_local(row, target[part])

    def Allreduce(self, _: Any, values: NDArray[Any], op: MPI.Op) -> None:
        """Combine the ranks' elements in place, on every rank."""
        # At least one dimension, or the result could not be written into a part of it.
        flat = values.reshape(-1)
        self.Reduce(flat.copy(), flat if self.rank == SERVER_RANK else None, op)
        self.Bcast(flat)

    def Alltoall(self, sent: NDArray[Any], received: NDArray[Any]) -> None:
        """Send one element from every rank to every rank."""
        ones = np.ones(self.size, np.int64)
        kind = MPI.BYTE.Create_contiguous(sent.itemsize).Commit()
        try:
            self.Alltoallv([sent, ones, kind], [received, ones, kind])
        finally:
            kind.Free()

    def Alltoallv(self, sent: Any, received: Any) -> None:
        """Send some rows from every rank to every rank."""
        outgoing = _parts(sent[0], sent[1])
        incoming = _parts(received[0], received[1])
        incoming[self.rank][:] = outgoing[self.rank]
        # The next rank first, so that not all begin with the same one.
        peers = [(self.rank + step) % self.size for step in range(1, self.size)]
        requests = [
            self._comm.Irecv([incoming[peer], len(incoming[peer]), received[2]], peer, TAG)
            for peer in peers
            if len(incoming[peer])
        ]
        requests += [
            self._comm.Isend([outgoing[peer], len(outgoing[peer]), sent[2]], peer, TAG)
            for peer in peers
            if len(outgoing[peer])
        ]
        wait(requests)

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self.Allreduce(MPI.IN_PLACE, np.zeros(1, np.uint8), MPI.MAX)


def _parts(whole: NDArray[Any], counts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return each rank's part of an array that holds them in order."""
    ends = np.cumsum(counts).tolist()
    return [whole[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
