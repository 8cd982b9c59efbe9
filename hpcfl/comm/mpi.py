"""The transport over MPI: the steps' patterns as collective operations on buffers.

Sizes travel ahead of payloads in small collectives of their own. They belong to MPI's framing, not
to the protocol, and are not entered in the ledger.

Everything that the ranks do together is one *operation*: a function without arguments that only
reads what this rank sends, so that it can be called again. Here it is called once. The transport of
:mod:`hpcfl.comm.faults` calls it again, on another communicator, if a rank dies meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm.phases import Ids, Payload, Rows
from hpcfl.comm.placement import Placement
from hpcfl.comm.rows import Received, by_receiver, label, receivers_of, senders_of
from hpcfl.comm.scratch import Scratch
from hpcfl.comm.star import Star
from hpcfl.comm.transport import Produce, Transport
from hpcfl.crypto.groups import Elements, Field, Group
from hpcfl.errors import AgreedError, AgreedUsageError, HpcflError, UsageError

SERVER_RANK = 0
# One Gatherv or Scatterv moves at most this much from or to the server, or one message.
WINDOW_BYTES = 1 << 28
# No call moves more than this: MPI counts with 32 bits.
CALL_BYTES = 1 << 30
# A rank that waits outside timed regions looks whether it may go on after this share of its wait,
# within limits: 75 ranks that look every 5 ms take a third of two cores from those at work, and the
# steps of a barrier, one look each, must not add up to much.
POLL_SHARE = 0.02
POLL_SECONDS = (0.005, 0.05)
# One Reduce that only checks or records adds up at most this many elements.
REDUCE_ELEMENTS = 1 << 15
# Stands for the rank of a device that has none any more.
NOWHERE = -1

# Sums in a field, by its name. mpi4py creates 32 operations at most, and a training has a transport
# for every round.
_SUM_OPS: dict[str, MPI.Op] = {}

T = TypeVar("T")


class MpiTransport(Transport):
    """Moves messages through the collectives of a communicator whose rank 0 is the server."""

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm | Star, placement: Placement) -> None:
        super().__init__(placement, comm.rank)
        self._comm = comm
        self._sending, self._receiving = Scratch(), Scratch()
        # Each device's rank in the communicator, NOWHERE for those that have none.
        self._rank_of = self.placement.rank_of()

    def _together(self, operation: Callable[[], T]) -> T:
        """Return what an operation of all ranks returns."""
        return operation()

    def select(self, ids: Sequence[int]) -> MpiTransport:
        return MpiTransport(self._comm, self.placement.select(ids))

    def tell(self, value: int, error: HpcflError | None = None) -> int:
        return self._together(lambda: announce(self._comm, value, error))

    def broadcast(self, message: Payload | None, error: HpcflError | None = None) -> Payload:
        def operation() -> Payload:
            size = announce(self._comm, 0 if message is None else message.size, error)
            received = np.empty(size, np.uint8) if message is None else message
            for start in range(0, size, CALL_BYTES):
                part = received[start : start + CALL_BYTES]
                self._comm.Bcast([part, MPI.BYTE], root=SERVER_RANK)
            return received

        return self._together(operation)

    def scatter(self, receivers: Sequence[int], produce: Produce) -> Iterator[tuple[int, Payload]]:
        devices, first = self.placement.devices, 0
        while first < devices:
            messages: list[Payload] = []
            size = 0
            while self.has_server and first + len(messages) < devices and size < WINDOW_BYTES:
                messages.append(produce(first + len(messages)))
                size += messages[-1].size
            stop = first + self.tell(len(messages))
            yield from self._scatter_window(range(first, stop), receivers, messages)
            first = stop

    def _scatter_window(
        self, window: range, receivers: Sequence[int], messages: list[Payload]
    ) -> Iterator[tuple[int, Payload]]:
        sizes = np.array([message.size for message in messages], np.int64)
        sent = self._end_to_end(messages)
        messages.clear()

        def operation() -> tuple[NDArray[np.int64], Payload]:
            told = sizes if self.has_server else np.empty(len(window), np.int64)
            self._comm.Bcast(told, root=SERVER_RANK)
            counts = self._bytes_by_rank(window, told)
            received = self._receiving.take(int(counts[self._comm.rank]))
            outgoing = self._of_the_living(window, told, sent) if self.has_server else sent
            for whole, now, part in self._calls(counts):
                layout = [outgoing[whole], now, MPI.BYTE] if self.has_server else None
                self._comm.Scatterv(layout, [received[part], MPI.BYTE], root=SERVER_RANK)
            return told, received

        told, received = self._together(operation)
        listening = set(receivers)
        local = self.local_devices
        start = 0
        for id, size in zip(window, told.tolist(), strict=True):
            if id in local:
                if id in listening:
                    yield id, received[start : start + size]
                start += size

    def _of_the_living(self, window: range, sizes: NDArray[np.int64], sent: Payload) -> Payload:
        """Return the messages, end to end, without those to devices that have no rank."""
        there = self._rank_of[window.start : window.stop] != NOWHERE
        return sent if there.all() else sent[np.repeat(there, sizes)]

    def gather(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        devices = self.placement.devices
        at_once = max(1, WINDOW_BYTES // largest)
        for first in range(0, devices, at_once):
            window = range(first, min(first + at_once, devices))
            there = [id for id in senders if id in window]
            yield from self._gather_window(window, there, produce, largest)

    def _gather_window(
        self, window: range, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        sent, sizes_of = self._produce_all(senders, produce, largest)
        mine = np.zeros(len(window), np.int64)
        mine[np.array(senders, np.int64) - window.start] = sizes_of

        def operation() -> tuple[NDArray[np.int64], Payload]:
            sizes = mine.copy()
            self._comm.Allreduce(MPI.IN_PLACE, sizes, MPI.SUM)
            counts = self._bytes_by_rank(window, sizes)
            received = self._receiving.take(int(sizes.sum()) if self.has_server else 0)
            for whole, now, part in self._calls(counts):
                layout = [received[whole], now, MPI.BYTE] if self.has_server else None
                self._comm.Gatherv([sent[part], MPI.BYTE], layout, root=SERVER_RANK)
            return sizes, received

        sizes, received = self._together(operation)
        if self.has_server:
            start = 0
            for sender, size in zip(window, sizes.tolist(), strict=True):
                if size:
                    yield sender, received[start : start + size]
                start += size

    def _produce_all(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> tuple[Payload, list[int]]:
        """Return the senders' messages, end to end, and how large each is."""
        if len(senders) == 1:
            message = produce(senders[0])
            return message, [message.size]
        whole = self._sending.take(largest * len(senders))
        sizes: list[int] = []
        end = 0
        for sender in senders:
            # Put away at once: it is still in the cache, and its memory becomes the next one's.
            message = produce(sender)
            if end + message.size > whole.size:
                whole = np.concatenate([whole[:end], np.empty(whole.size + message.size, np.uint8)])
            whole[end : end + message.size] = message
            sizes.append(message.size)
            end += message.size
            del message
        return whole[:end], sizes

    def _end_to_end(self, messages: list[Payload]) -> Payload:
        if len(messages) == 1:
            return messages[0]
        whole = self._sending.take(sum(message.size for message in messages))
        return np.concatenate(messages, out=whole) if messages else whole

    def _bytes_by_rank(self, window: range, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        ranks = self._rank_of[window.start : window.stop]
        there = ranks != NOWHERE
        return np.bincount(ranks[there], sizes[there], self._comm.size).astype(np.int64)

    def _calls(self, counts: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[np.int64], slice]]:
        """Yield, for each call, its part of all bytes, its bytes by rank, its part of this rank's.

        `counts` are each rank's bytes, shape (ranks,); all bytes are in the order of the ranks.
        """
        ends = np.cumsum(counts)
        done = 0
        for start in range(0, max(1, int(ends[-1])), CALL_BYTES):
            stop = start + CALL_BYTES
            now = np.clip(ends, start, stop) - np.clip(ends - counts, start, stop)
            mine = int(now[self._comm.rank])
            yield slice(start, stop), now, slice(done, done + mine)
            done += mine

    def reduce(
        self, senders: Sequence[int], produce: Produce, group: Group, dim: int
    ) -> tuple[list[int], Elements] | None:
        mine = np.zeros(dim, np.uint32)
        sent = []
        for sender in senders:
            payload = produce(sender)
            if payload.size:
                group.add_into(mine, payload.view("<u4"))
                sent.append(sender)

        def operation() -> tuple[list[int], Elements] | None:
            total = np.empty(dim, np.uint32) if self.has_server else None
            for start in range(0, dim, CALL_BYTES // 4):
                part = slice(start, start + CALL_BYTES // 4)
                target = None if total is None else total[part]
                self._comm.Reduce(mine[part], target, self._sum_op(group), root=SERVER_RANK)
            ids = self._present(sent)
            return None if total is None or ids is None else (ids.tolist(), total)

        return self._together(operation)

    def _sum_op(self, group: Group) -> MPI.Op:
        if not isinstance(group, Field):
            return MPI.SUM
        if group.name not in _SUM_OPS:

            def add(source: Any, target: Any, _: MPI.Datatype) -> None:
                group.add_into(np.frombuffer(target, np.uint32), np.frombuffer(source, np.uint32))

            _SUM_OPS[group.name] = MPI.Op.Create(add, commute=True)
        return _SUM_OPS[group.name]

    def route(
        self, senders: Sequence[int], rows: Sequence[Rows], width: int
    ) -> tuple[dict[int, Received], NDArray[np.bool_]]:
        labelled = label(senders, rows, width, self.placement.devices)
        receivers = receivers_of(labelled)

        def operation() -> tuple[dict[int, Received], NDArray[np.bool_]]:
            took_part = np.zeros(self.placement.devices, np.uint8)
            took_part[senders_of(labelled)] = 1
            self._comm.Allreduce(MPI.IN_PLACE, took_part, MPI.MAX)
            return self._route(labelled, receivers), took_part.view(np.bool_)

        return self._together(operation)

    def _route(self, labelled: Rows, receivers: NDArray[np.int64]) -> dict[int, Received]:
        # Blocks of ids lie on ranks in order, so what is sorted by receiver is sorted by rank too.
        ranks = self._rank_of[receivers]
        sent, ranks = labelled[ranks != NOWHERE], ranks[ranks != NOWHERE]
        counts_out = np.bincount(ranks, minlength=self._comm.size).astype(np.int64)
        counts_in = np.empty_like(counts_out)
        self._comm.Alltoall(counts_out, counts_in)
        size = labelled.shape[1]
        received = np.empty((int(counts_in.sum()), size), np.uint8)
        row_type = MPI.BYTE.Create_contiguous(size).Commit()
        try:
            self._comm.Alltoallv([sent, counts_out, row_type], [received, counts_in, row_type])
        finally:
            row_type.Free()
        return by_receiver(received)

    def _present(self, senders: Sequence[int]) -> Ids | None:
        """Return the senders of all ranks, by id, at the server; None elsewhere."""
        taking_part = np.zeros(self.placement.devices, np.uint8)
        taking_part[list(senders)] = 1
        together = self._sum_to_server(taking_part)
        return None if together is None else np.flatnonzero(together)

    def sum_to_server(self, values: NDArray[Any]) -> NDArray[Any] | None:
        return self._together(lambda: self._sum_to_server(values))

    def _sum_to_server(self, values: NDArray[Any]) -> NDArray[Any] | None:
        total = np.empty_like(values) if self.has_server else None
        # In pieces: inner ranks of the reduction's tree buffer several of their children's.
        mine, whole = values.reshape(-1), None if total is None else total.reshape(-1)
        for start in range(0, mine.size, REDUCE_ELEMENTS):
            part = slice(start, start + REDUCE_ELEMENTS)
            target = None if whole is None else whole[part]
            self._comm.Reduce(mine[part], target, MPI.SUM, root=SERVER_RANK)
        return total

    def max_to_server(self, value: float) -> float | None:
        def operation() -> float | None:
            # A buffer: for objects mpi4py uses a communicator of its own, which nobody revokes.
            largest = np.empty(1) if self.has_server else None
            self._comm.Reduce(np.array([value], float), largest, MPI.MAX, root=SERVER_RANK)
            return None if largest is None else float(largest[0])

        return self._together(operation)

    def barrier(self) -> None:
        self._together(lambda: self._comm.Barrier())

    def wait_for_all(self) -> None:
        self._together(lambda: wait(self._comm.Ibarrier()))


def wait(request: MPI.Request, limit_seconds: float = float("inf")) -> bool:
    """Return whether the request completed within the limit, looking only now and then."""
    begin = time.monotonic()
    shortest, longest = POLL_SECONDS
    while not request.Test():
        waited = time.monotonic() - begin
        if waited > limit_seconds:
            return False
        time.sleep(min(max(shortest, POLL_SHARE * waited), longest))
    return True


def announce(comm: MPI.Intracomm | Star, size: int, error: HpcflError | None) -> int:
    """Tell every rank the server's `size`, or raise its error everywhere.

    Only the server's arguments count.
    """
    text = str(error).encode() if error is not None else b""
    head = np.array([size, error.exit_status if error is not None else 0, len(text)], np.int64)
    comm.Bcast(head, root=SERVER_RANK)
    size, status, length = head.tolist()
    if status:
        raw = np.frombuffer(text, np.uint8).copy() if text else np.empty(length, np.uint8)
        comm.Bcast(raw, root=SERVER_RANK)
        kind = AgreedUsageError if status == UsageError.exit_status else AgreedError
        raise kind(raw.tobytes().decode(), status) from error
    return size
