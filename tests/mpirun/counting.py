"""A communicator that counts what passes through it, and knows nothing of ledgers.

What a round moves besides messages is recognised by its kind: sizes and counts are int64, who takes
part are flags of uint8, and rows have a label in front. Messages are lists of a buffer and a type.
"""

from __future__ import annotations

import numpy as np

from hpcfl.comm.mpi import TAG as SCATTERED

LABEL_BYTES = 4
# Of a number for each rank or device. Vectors of the rounds are a hundred times as long.
ANNOUNCED_BYTES = 128


class Counted:
    """Passes calls on; a call that is not here raises AttributeError, so that none is missed."""

    def __init__(self, comm):
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.sent = self.received = 0  # bytes of messages, each of one device
        self.sent_once = self.received_once = 0  # those that stand for all devices of this rank

    def Bcast(self, buffer, root):
        if isinstance(buffer, list):
            self.received_once += buffer[0].nbytes
        else:
            announced(buffer, np.int64)
        self._comm.Bcast(buffer, root)

    def Alltoall(self, sent, received):
        announced(sent, np.int64)
        self._comm.Alltoall(sent, received)

    def Alltoallv(self, sent, received):
        self.sent += without_labels(sent)
        self.received += without_labels(received)
        self._comm.Alltoallv(sent, received)

    def Allreduce(self, mine, values, op):
        announced(values, np.int64, np.uint8)
        self._comm.Allreduce(mine, values, op)

    def Reduce(self, mine, target, op, root):
        if mine.dtype == np.uint32:
            self.sent_once += mine.nbytes
        else:
            announced(mine, np.uint8)
        self._comm.Reduce(mine, target, op, root)

    def Isend(self, buffer, rank, tag):
        if not isinstance(buffer, list):
            announced(buffer, np.int64, np.uint8)
        elif tag != SCATTERED:
            self.sent += buffer[0].nbytes
        return self._comm.Isend(buffer, rank, tag)

    def Send(self, buffer, rank, tag=0):
        self._comm.Send(buffer, rank, tag)  # between ranks of a server alone

    def Recv(self, buffer, rank):
        self._comm.Recv(buffer, rank)

    def Irecv(self, buffer, rank, tag):
        # What is gathered is counted where it is sent.
        self.received += buffer[0].nbytes if tag == SCATTERED else 0
        return self._comm.Irecv(buffer, rank, tag)


def announced(buffer, *dtypes):
    """Assert that a buffer is of a kind that announces messages, and too small to be one."""
    assert buffer.dtype in dtypes, buffer.dtype
    assert buffer.nbytes <= ANNOUNCED_BYTES, buffer.nbytes


def without_labels(layout):
    """Return the bytes of rows without what the transport puts in front of each."""
    rows, counts, _ = layout
    assert len(rows) == counts.sum()
    return rows.nbytes - LABEL_BYTES * len(rows)
