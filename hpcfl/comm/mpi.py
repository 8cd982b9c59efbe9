"""The transport over MPI: each pattern of a step is an operation of all ranks on buffers.

Sizes travel ahead of payloads. They are MPI's framing and are not entered in the ledger.

An *operation* does not change the data that this rank sends, so it can be repeated. The transport
of :mod:`hpcfl.comm.faults` repeats it on another communicator if a rank dies during it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm import clocks
from hpcfl.comm import rows as rows_of
from hpcfl.comm.calls import WaitsFor
from hpcfl.comm.gather import CALL_BYTES, Gather, pieces
from hpcfl.comm.patient import SELDOM, Comm, complete, wait
from hpcfl.comm.phases import Ids, Payload, Rows
from hpcfl.comm.placement import SERVER_RANK, Placement
from hpcfl.comm.rows import Received
from hpcfl.comm.scratch import Scratch, pages, reused
from hpcfl.comm.transport import AddInto, Cuts, Part, Produce, Transport
from hpcfl.crypto.groups import Elements
from hpcfl.errors import AgreedError, AgreedUsageError, HpcflError, UsageError

# The most elements of one Reduce for checks and records.
REDUCE_ELEMENTS = 1 << 15
# Messages that measure the rate of plain MPI, and the repetitions, of which the best one counts.
PLAIN_BYTES, PLAIN_REPEATS = 1 << 22, 6
# The rank of a device whose rank has died.
NOWHERE = -1
TAG = 4

T = TypeVar("T")


class MpiTransport(Transport):
    """Moves messages through the collectives of a communicator whose rank 0 is the server."""

    name = "mpi"
    _repeats = False  # whether an operation may be called again

    def __init__(self, comm: Comm, placement: Placement) -> None:
        super().__init__(placement, comm.rank)
        self._comm = comm
        self._scratches = Scratch(), Scratch()
        self._unfinished: list[MPI.Request] = []
        # Each device's rank in the communicator, NOWHERE if that rank has died.
        self._rank_of = self.placement.homes
        # For each rank of the communicator, its rank in the placement.
        self._ranks: Sequence[int] = range(comm.size)
        self._first_of_hosts: NDArray[np.int64] | None = None

    def _together(self, operation: Callable[[], T], waits_for: WaitsFor) -> T:
        """Return the result of an operation of all ranks, and note the call."""
        with self.calls.call(waits_for):
            return operation()

    def _from_server(self, operation: Callable[[], T]) -> T:
        """Return the result of an operation in which the server sends to all ranks."""
        waits_for = WaitsFor.NOBODY if self.has_server else WaitsFor.SERVER
        return self._together(operation, waits_for)

    def _to_server(self, operation: Callable[[], T]) -> T:
        """Return the result of an operation in which all ranks send to the server."""
        waits_for = WaitsFor.EVERYBODY if self.has_server else WaitsFor.NOBODY
        return self._together(operation, waits_for)

    def _all_to_all(self, operation: Callable[[], T]) -> T:
        return self._together(operation, WaitsFor.EVERYBODY)

    def select(self, ids: Sequence[int]) -> MpiTransport:
        return MpiTransport(self._comm, self.placement.select(ids))

    def tell(self, value: int, error: HpcflError | None = None) -> int:
        return self._from_server(lambda: announce(self._comm, value, error))

    def broadcast(self, message: Payload | None, error: HpcflError | None = None) -> Payload:
        def operation() -> Payload:
            size = announce(self._comm, 0 if message is None else message.size, error)
            received = reused(size) if message is None else message
            for part in parts_of(received):
                self._comm.Bcast([part, MPI.BYTE], root=SERVER_RANK)
            return received

        return self._from_server(operation)

    def scatter(self, receivers: Sequence[int], produce: Produce) -> Iterator[tuple[int, Payload]]:
        devices = range(self.placement.devices)
        messages = [produce(id) for id in devices] if self.has_server else []
        sizes = np.array([message.size for message in messages], np.int64)

        def operation() -> dict[int, Payload]:
            told = sizes if self.has_server else np.empty(len(devices), np.int64)
            self._comm.Bcast(told, root=SERVER_RANK)
            received = {id: np.empty(told[id], np.uint8) for id in self.local_devices}
            sent = zip(self._rank_of.tolist(), messages, strict=False)
            outgoing = [one for one in sent if one[0] != NOWHERE]
            self._move([(SERVER_RANK, message) for message in received.values()], outgoing)
            return received

        received = self._from_server(operation)
        messages.clear()
        listening = set(receivers)
        yield from ((id, message) for id, message in received.items() if id in listening)

    def _move(
        self, incoming: Iterable[tuple[int, Payload]], outgoing: Iterable[tuple[int, Payload]]
    ) -> None:
        """Receive and send all messages at once; each comes with the rank it is from or for."""
        requests: list[MPI.Request] = []
        try:
            for begin, moving in ((self._comm.Irecv, incoming), (self._comm.Isend, outgoing)):
                for rank, message in moving:
                    for part in parts_of(message):
                        requests.append(begin([part, MPI.BYTE], rank, TAG))
            complete(self._comm, requests)
        except MPI.Exception:
            # A rank died. MPI may still write to the buffers, which the requests keep alive.
            self._unfinished += requests
            raise

    def gather(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        gathered = self._gathered(senders, produce, largest, in_parts=False)
        return cast("Iterator[tuple[int, Payload]]", gathered)

    def gather_parts(
        self, senders: Sequence[int], produce: Produce, largest: int, cuts: Cuts | None = None
    ) -> Iterator[tuple[int, Payload | Part]]:
        return self._gathered(senders, produce, largest, in_parts=True, cuts=cuts)

    def _gathered(
        self,
        senders: Sequence[int],
        produce: Produce,
        largest: int,
        in_parts: bool,
        cuts: Cuts | None = None,
    ) -> Iterator[tuple[int, Payload | Part]]:
        gather = Gather(
            *(self._comm, self.placement, largest, self._scratches, self.calls), in_parts, cuts
        )
        if self.has_server or (self.helps_server and cuts is not None):
            yield from gather.receive()
        else:
            gather.send(senders, produce)
        self.calls.number += len(gather.windows)

    def to_server_ranks(self, message: Payload | None) -> Payload | None:
        def operation() -> Payload | None:
            if self.helps_server:
                return receive(self._comm, SERVER_RANK)
            for rank in range(1, self.placement.servers if self.has_server else 0):
                send(self._comm, np.empty(0) if message is None else message, rank)
            return message

        return self._from_server(operation)

    def join(self, mine: Elements | None, ranges: Sequence[range]) -> Elements | None:
        def operation() -> Elements | None:
            if mine is None:
                return None
            if self.helps_server:
                send(self._comm, mine, SERVER_RANK)
                return None
            others = [receive(self._comm, rank) for rank in range(1, len(ranges))]
            return np.concatenate([mine, *(each.view(mine.dtype) for each in others)])

        return self._to_server(operation)

    def reduce(
        self, senders: Sequence[int], produce: Produce, add_into: AddInto, zeros: Elements
    ) -> tuple[list[int], Elements] | None:
        mine, dtype = zeros, zeros.dtype
        sent = []
        for sender in senders:
            payload = produce(sender)
            if payload.size:
                add_into(mine, payload.view(dtype))
                sent.append(sender)

        def add(source: Any, target: Any, _: MPI.Datatype) -> None:
            add_into(np.frombuffer(target, dtype), np.frombuffer(source, dtype))

        def operation() -> tuple[list[int], Elements] | None:
            total = np.empty_like(mine) if self.has_server else None
            step = CALL_BYTES // dtype.itemsize
            for start in range(0, mine.size, step):
                part = slice(start, start + step)
                target = None if total is None else total[part]
                self._comm.Reduce(mine[part], target, _sum(add), root=SERVER_RANK)
            ids = self._present(sent)
            return None if total is None or ids is None else (ids.tolist(), total)

        return self._to_server(operation)

    def route(
        self, senders: Sequence[int], rows: Iterable[Rows], width: int
    ) -> tuple[Iterator[tuple[int, Received]], NDArray[np.bool_]]:
        homes = self.placement.homes
        batches = rows_of.label(senders, rows, width, homes.size)
        sending = np.zeros(homes.size, np.uint8)
        for batch in batches:
            sending[rows_of.senders_of(batch)] = 1
        size = np.array([sum(batch.size for batch in batches)])
        largest = self._all_to_all(lambda: self._maximum(size))
        windows = rows_of.windows(homes.size, int(largest[0]))
        labelled = rows_of.by_window(batches, windows, homes)

        def operation() -> tuple[list[Rows], NDArray[np.bool_]]:
            took_part = self._maximum(sending).view(np.bool_)
            received = []
            for k in range(len(windows)):
                received.append(self._exchanged(labelled[k]))
                if not self._repeats:
                    labelled[k] = np.empty_like(labelled[k][:0])
            return received, took_part

        received, took_part = self._all_to_all(operation)
        return rows_of.delivered(self.local_devices, windows, received), took_part

    def _maximum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the element-wise maximum over the ranks, on all."""
        largest = values.copy()
        self._comm.Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
        return largest

    def _exchanged(self, labelled: Rows) -> Rows:
        """Return the rows of a window that this rank receives."""
        receivers = rows_of.receivers_of(labelled)
        ranks = self._rank_of[receivers]
        there = ranks != NOWHERE
        sent, ranks = (labelled, ranks) if there.all() else (labelled[there], ranks[there])
        counts_out = np.bincount(ranks, minlength=self._comm.size).astype(np.int64)
        counts_in = np.empty_like(counts_out)
        self._comm.Alltoall(counts_out, counts_in)
        size = labelled.shape[1]
        received = pages(int(counts_in.sum()), size)
        row_type = MPI.BYTE.Create_contiguous(size).Commit()
        try:
            self._comm.Alltoallv([sent, counts_out, row_type], [received, counts_in, row_type])
        finally:
            row_type.Free()
        return received

    def _present(self, senders: Sequence[int]) -> Ids | None:
        """Return the senders of all ranks, by id, at the server; None elsewhere."""
        taking_part = np.zeros(self.placement.devices, np.uint8)
        taking_part[list(senders)] = 1
        together = self._sum_to_server(taking_part)
        return None if together is None else np.flatnonzero(together)

    def sum_to_server(self, values: NDArray[Any]) -> NDArray[Any] | None:
        return self._to_server(lambda: self._sum_to_server(values))

    def _sum_to_server(self, values: NDArray[Any]) -> NDArray[Any] | None:
        total = np.empty_like(values) if self.has_server else None
        # In pieces, because inner ranks of the reduction tree buffer the data of several children.
        mine, whole = values.reshape(-1), None if total is None else total.reshape(-1)
        for start in range(0, mine.size, REDUCE_ELEMENTS):
            part = slice(start, start + REDUCE_ELEMENTS)
            target = None if whole is None else whole[part]
            self._comm.Reduce(mine[part], target, MPI.SUM, root=SERVER_RANK)
        return total

    def collect(self, values: NDArray[Any]) -> NDArray[Any] | None:
        def operation() -> NDArray[Any] | None:
            shape = (self._comm.size, *values.shape)
            everybodys = np.empty(shape, values.dtype) if self.has_server else None
            self._comm.Gather(np.ascontiguousarray(values), everybodys, root=SERVER_RANK)
            return everybodys

        found = self._to_server(operation)
        if found is None:
            return None
        whole = np.zeros((self.placement.ranks, *values.shape), values.dtype)
        whole[list(self._ranks)] = found
        return whole

    def plain_bytes_per_second(self) -> float | None:
        sending = [rank for rank in {*self._rank_of.tolist()} if rank != NOWHERE]
        incoming = [(rank, np.empty(PLAIN_BYTES, np.uint8)) for rank in sending * self.has_server]
        outgoing = [(SERVER_RANK, np.zeros(PLAIN_BYTES, np.uint8))] * (self.rank in sending)
        seconds = []
        for _ in range(PLAIN_REPEATS):
            self.barrier()
            start = time.perf_counter()
            self._to_server(lambda: self._move(incoming, outgoing))
            seconds.append(time.perf_counter() - start)
        return len(sending) * PLAIN_BYTES / min(seconds) if self.has_server else None

    def compare_clocks(self) -> None:
        def operation() -> tuple[NDArray[np.int64], clocks.Offset]:
            known = self._first_of_hosts
            if known is None or known.size != self._comm.size:
                known = clocks.first_of_hosts(self._comm)
            return known, clocks.compare(self._comm, known)

        known = self._first_of_hosts
        # Skipped if all ranks were on the server's host at the last comparison: they share a clock.
        if known is None or known.any():
            self._first_of_hosts, found = self._all_to_all(operation)
            self.clock_offset_seconds, self.clock_uncertainty_seconds = found

    def barrier(self) -> None:
        self._all_to_all(lambda: self._comm.Barrier())

    def wait_for_all(self) -> None:
        self._all_to_all(lambda: wait([self._comm.Ibarrier()], pace=SELDOM))


def parts_of(array: NDArray[Any]) -> Iterator[Payload]:
    """Yield the bytes of an array in parts that one MPI call can move."""
    flat = array.reshape(-1).view(np.uint8)
    return (flat[piece] for piece in pieces(0, flat.size) if flat.size)


def send(comm: Comm, message: NDArray[Any], rank: int) -> None:
    """Send the bytes of an array of any length to a rank that calls `receive`."""
    comm.Send(np.array([message.nbytes]), rank)
    for part in parts_of(message):
        comm.Send([part, MPI.BYTE], rank)


def receive(comm: Comm, rank: int) -> Payload:
    """Return the bytes that a rank sends."""
    size = np.empty(1, np.int64)
    comm.Recv(size, rank)
    message = np.empty(int(size[0]), np.uint8)
    for part in parts_of(message):
        comm.Recv([part, MPI.BYTE], rank)
    return message


def _sum(add: Callable[[Any, Any, MPI.Datatype], None]) -> MPI.Op:
    """Return an MPI operation that combines two buffers with `add`.

    All transports and groups share one operation: mpi4py creates at most 32.
    """
    global _add, _op
    _add = add
    if _op is None:
        _op = MPI.Op.Create(lambda *buffers: _add(*buffers), commute=True)
    return _op


_op: MPI.Op | None = None
_add: Callable[[Any, Any, MPI.Datatype], None]


def announce(comm: Comm, size: int, error: HpcflError | None) -> int:
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
