"""Collectives for ranks that each have their own narrow link to the server.

MPI libraries broadcast and reduce along trees, and receive large messages from one sender after
another. So messages pass over links of unrelated devices, or all links but one are idle. Here the
server exchanges messages with all devices directly and at once. The ranks share a machine, so a
waiting rank sleeps, as in :mod:`hpcfl.comm.patient`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm.patient import Patient, wait
from hpcfl.comm.placement import SERVER_RANK

TAG = 7
# The total size of the server's buffers in one reduction.
BUFFER_BYTES = 1 << 28


class Star(Patient):
    """The part of a communicator that `MpiTransport` uses, with rank 0 in the middle.

    Its methods have the names and effects of those of `mpi4py.MPI.Intracomm`; `root` is rank 0.
    Nothing else may send point-to-point messages with `TAG` on the communicator.
    """

    def _move(self, outgoing: dict[int, Any], incoming: dict[int, Any]) -> None:
        """Send and receive buffers, by rank, all at once."""
        requests = [self._comm.Irecv(buffer, rank, TAG) for rank, buffer in incoming.items()]
        requests += [self._comm.Isend(buffer, rank, TAG) for rank, buffer in outgoing.items()]
        wait(requests)

    def Bcast(self, buffer: Any, root: int = SERVER_RANK) -> None:
        if self.rank == root:
            self._move(dict.fromkeys(range(1, self.size), buffer), {})
        else:
            self._move({}, {root: buffer})

    def Reduce(
        self, mine: NDArray[Any], target: NDArray[Any] | None, op: MPI.Op, root: int = SERVER_RANK
    ) -> None:
        """Combine the ranks' elements at the server, which does all of the computation."""
        others = range(1, self.size)
        at_once = max(1, BUFFER_BYTES // max(1, len(others) * mine.itemsize))
        if target is not None and self.rank == root:
            target[:] = mine
        for start in range(0, mine.size, at_once):
            part = slice(start, start + at_once)
            if self.rank != root or target is None:
                self._move({root: mine[part]}, {})
                continue
            rows = np.empty((len(others), target[part].size), mine.dtype)
            self._move({}, dict(zip(others, rows, strict=True)))
            for row in rows:
                op.Reduce_local(row, target[part])

    def Allreduce(self, _: Any, values: NDArray[Any], op: MPI.Op) -> None:
        """Combine the ranks' elements in place, on every rank."""
        # At least one dimension, so that the result can be written into a slice.
        flat = values.reshape(-1)
        self.Reduce(flat.copy(), flat if self.rank == SERVER_RANK else None, op)
        self.Bcast(flat)

    def Alltoall(self, sent: NDArray[Any], received: NDArray[Any]) -> None:
        """Send one element from every rank to every rank."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        received[self.rank] = sent[self.rank]
        self._move(
            {rank: sent[rank : rank + 1] for rank in others},
            {rank: received[rank : rank + 1] for rank in others},
        )

    def Alltoallv(self, sent: Any, received: Any) -> None:
        """Send some rows from every rank to every rank."""
        outgoing, incoming = _parts(*sent[:2]), _parts(*received[:2])
        if self.rank in outgoing:
            incoming.pop(self.rank)[:] = outgoing.pop(self.rank)
        # Each rank begins with the next rank, so that not all begin with the same one.
        ranks = [(self.rank + step) % self.size for step in range(1, self.size)]
        self._move(
            {r: [outgoing[r], len(outgoing[r]), sent[2]] for r in ranks if r in outgoing},
            {r: [incoming[r], len(incoming[r]), received[2]] for r in ranks if r in incoming},
        )

    def Barrier(self) -> None:
        self.Allreduce(MPI.IN_PLACE, np.zeros(1, np.uint8), MPI.MAX)


def _parts(whole: NDArray[Any], counts: NDArray[np.int64]) -> dict[int, NDArray[Any]]:
    """Return each rank's part of an array that holds the parts in order; leave out empty parts."""
    ends = np.cumsum(counts).tolist()
    return {
        rank: whole[end - count : end]
        for rank, (end, count) in enumerate(zip(ends, counts.tolist(), strict=True))
        if count
    }
