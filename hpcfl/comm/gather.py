"""The gather as a stream: devices compute while others send, and while the server adds up.

The ids are processed in windows. A rank makes the messages of its devices in the next window while
those of the last one are in transit. The server receives a window in one *turn*, or in several if
it holds only a part of each long message. It posts the receives of the next turn before it uses the
current one, and so holds at most two turns. Both sides let the MPI library make progress after
every message that they make or use. A device without a message sends an empty one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import cycle, pairwise

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm import envelope
from hpcfl.comm.calls import Calls, WaitsFor
from hpcfl.comm.patient import Comm, complete
from hpcfl.comm.phases import Payload
from hpcfl.comm.placement import SERVER_RANK, Placement, within
from hpcfl.comm.scratch import Scratch
from hpcfl.comm.transport import WINDOW_BYTES, Cuts, Part, Produce
from hpcfl.errors import HpcflError
from hpcfl.values import dataclass

# No call moves more bytes than this: MPI counts with 32 bits.
CALL_BYTES = 1 << 30
# The bytes of a turn of parts, of all ranks together: few enough to stay in the cache until used.
TURN_BYTES = 1 << 23
# The least bytes of a part of a message, however many ranks send one.
LEAST_PART_BYTES = 1 << 18
SIZES, MESSAGES, COUNT = 1, 2, 3  # tags
_NOTHING = np.empty(0, np.uint8)


class Transfer:
    """Messages in transit since `begun`; `number` is their call's, the same on all ranks."""

    def __init__(
        self, comm: Comm, requests: list[MPI.Request], begun: float, number: int, sends: bool
    ) -> None:
        self._comm = comm
        self._requests = requests
        self._number = number
        self._sends = sends
        self._available = begun
        self._moved = not sends or MPI.Request.Testall(requests)
        self._posting_seconds = time.perf_counter() - begun

    def move(self) -> None:
        """Let the MPI library make progress: most libraries move data only within their calls."""
        start = time.perf_counter()
        self._move_on(start)
        self._posting_seconds += time.perf_counter() - start

    def _move_on(self, now: float) -> None:
        """Make progress; messages that have not left yet count as available only from `now` on."""
        if not self._sends:
            self._requests[-1].Get_status()  # does not free the request, unlike a test
        elif not self._moved:
            self._available = now
            self._moved = MPI.Request.Testall(self._requests)

    def complete(self, calls: Calls, waits_for: WaitsFor) -> list[int]:
        """Wait until all messages have arrived, note the call, and return the sizes received."""
        begin = time.perf_counter()
        self._move_on(begin)
        statuses = [] if self._sends else [MPI.Status() for _ in self._requests]
        complete(self._comm, self._requests, statuses)
        end = time.perf_counter()
        self._requests = []
        calls.note(self._number, self._available, begin, end, waits_for, self._posting_seconds)
        return [status.Get_count(MPI.BYTE) for status in statuses]


@dataclass
class _Window:
    """The messages of a window, by id, as far as a rank of the server knows them."""

    ids: range
    number: int  # of the call in the notes
    ranks: list[int]
    sizes: NDArray[np.int64]  # of messages in parts
    counts: NDArray[np.uint8]  # whether the message counts


@dataclass
class _Turn:
    """All or a part of each message of a window, in transit to a rank of the server."""

    window: _Window
    part: slice
    first: bool
    memory: Payload  # shape (ids, bytes)
    transfer: Transfer


class Gather:
    """One gather as seen from a rank; `largest` as for `Transport.gather`.

    Each window is one call in the notes. If the server has several ranks, each receives some bytes
    of every message (`cuts`), and the first one tells the others which messages count.
    """

    def __init__(
        self,
        comm: Comm,
        placement: Placement,
        largest: int,
        scratches: Sequence[Scratch],
        calls: Calls,
        in_parts: bool = False,
        cuts: Cuts | None = None,
    ) -> None:
        self._comm = comm
        self._placement = placement
        self._largest = largest
        self._scratches = cycle(scratches)
        self._calls = calls
        self._cuts = cuts or Cuts([slice(0, largest)], lambda id: True)
        self._in_parts = cuts is not None or (in_parts and largest > WINDOW_BYTES)
        self.windows = windows(placement, largest, 0 if self._in_parts else WINDOW_BYTES)

    def send(self, senders: Collection[int], produce: Produce) -> None:
        """Send the messages of this rank's devices to the server."""
        local, there = self._placement.parties_on(self._comm.rank), {*senders}
        on_its_way: Transfer | None = None
        for number, window in enumerate(self.windows, self._calls.number):
            messages = []
            for id in within(local, window):
                messages.append(made(id, produce, self._largest) if id in there else _NOTHING)
                if on_its_way is not None:
                    on_its_way.move()
            if not messages:
                continue
            if on_its_way is not None:
                on_its_way.complete(self._calls, WaitsFor.SERVER)
            begun = time.perf_counter()
            requests = list(self._sends(messages))
            on_its_way = Transfer(self._comm, requests, begun, number, sends=True)
        if on_its_way is not None:
            on_its_way.complete(self._calls, WaitsFor.SERVER)

    def _sends(self, messages: list[Payload]) -> Iterator[MPI.Request]:
        """Begin to send messages; every rank of the server gets its bytes of each."""
        for rank in range(len(self._cuts.slices)):
            if self._in_parts:
                for message in messages:
                    yield self._comm.Isend(np.array([message.size]), rank, SIZES)
            for part in self._parts(rank):
                for message in messages:
                    for piece in pieces(part.start, part.stop):
                        yield self._comm.Isend([message[piece], MPI.BYTE], rank, MESSAGES)

    def _parts(self, rank: int) -> list[slice]:
        """Return the parts of each message that a rank of the server receives, in order."""
        if not self._in_parts:
            return [slice(0, self._largest)]
        most = max(LEAST_PART_BYTES, TURN_BYTES // max(map(len, self.windows), default=1))
        step = max(1, most // envelope.PART_UNIT) * envelope.PART_UNIT
        cut = self._cuts.slices[rank]
        # The first part of a message has the envelope in front.
        first = cut.start + step + (0 if cut.start else envelope.BYTES)
        bounds = [cut.start, *range(first, cut.stop, step), cut.stop]
        return [slice(start, stop) for start, stop in pairwise(bounds)]

    def receive(self) -> Iterator[tuple[int, Payload | Part]]:
        """Yield the id of each device that sends with its message, or with a part of it."""
        parts = self._parts(self._comm.rank)
        turn: _Turn | None = None
        for number, ids in enumerate(self.windows, self._calls.number):
            ranks = self._placement.homes[ids.start : ids.stop].tolist()
            sizes, counts = np.zeros(len(ids), np.int64), np.ones(len(ids), np.uint8)
            window = _Window(ids, number, ranks, sizes, counts)
            for part in parts:
                following = self._post(window, part, part is parts[0])
                if turn is not None:
                    yield from self._use(turn, following.transfer)
                turn = following
        if turn is not None:
            yield from self._use(turn, None)

    def _post(self, window: _Window, part: slice, first: bool) -> _Turn:
        begun = time.perf_counter()
        count, length = len(window.ids), part.stop - part.start
        memory = next(self._scratches).take(count * length).reshape(count, length)
        requests = []
        for row, rank in zip(memory, window.ranks, strict=True):
            for piece in pieces(0, length):
                requests.append(self._comm.Irecv([row[piece], MPI.BYTE], rank, MESSAGES))
        if first and self._in_parts:
            for place, rank in enumerate(window.ranks):
                size = window.sizes[place : place + 1]
                requests.append(self._comm.Irecv(size, rank, SIZES))
        if first and self._comm.rank != SERVER_RANK:
            requests.append(self._comm.Irecv(window.counts, SERVER_RANK, COUNT))
        transfer = Transfer(self._comm, requests, begun, window.number, sends=False)
        return _Turn(window, part, first, memory, transfer)

    def _use(self, turn: _Turn, following: Transfer | None) -> Iterator[tuple[int, Payload | Part]]:
        """Wait for a turn, and yield its messages while the following turn arrives."""
        window, start = turn.window, turn.part.start
        received = turn.transfer.complete(self._calls, WaitsFor.EVERYBODY)
        calls = len(pieces(0, turn.part.stop - start))  # for each message
        counts = window.counts.tolist()
        for place, (id, counted) in enumerate(zip(window.ids, counts, strict=True)):
            size = sum(received[place * calls : (place + 1) * calls])
            if counted and size:
                data = turn.memory[place, :size]
                yield id, Part(int(window.sizes[place]), start, data) if self._in_parts else data
                del data  # its memory is reused
            if following is not None:
                following.move()
        self._tell(turn)

    def _tell(self, turn: _Turn) -> None:
        """Tell the other ranks of the server, after the first turn, which messages count."""
        if not turn.first or self._comm.rank != SERVER_RANK:
            return
        sent = zip(turn.window.ids, turn.window.sizes.tolist(), strict=True)
        counts = np.array([size > 0 and self._cuts.accepted(id) for id, size in sent], np.uint8)
        for rank in range(1, len(self._cuts.slices)):
            self._comm.Send(counts, rank, COUNT)


def windows(placement: Placement, largest: int, limit: int) -> list[range]:
    """Return windows of ids whose messages, `largest` bytes each, have at most `limit` bytes.

    A window has at least one id, equally many of each rank if it can; one of each for a limit of 0.
    """
    ranks = max(1, placement.ranks - placement.servers - placement.helpers)
    at_once = max(1, limit // largest) if limit else ranks
    if at_once > ranks:
        at_once -= at_once % ranks
    parties = placement.parties
    return [range(first, min(first + at_once, parties)) for first in range(0, parties, at_once)]


def pieces(start: int, stop: int) -> list[slice]:
    """Return a range of bytes in pieces that one call can move; one empty piece for no bytes."""
    firsts = range(start, max(stop, start + 1), CALL_BYTES)
    return [slice(first, min(first + CALL_BYTES, stop)) for first in firsts]


def made(sender: int, produce: Produce, largest: int) -> Payload:
    """Return a sender's message; raise HpcflError if it has more than `largest` bytes."""
    message = produce(sender)
    if message.size > largest:
        raise HpcflError(
            f"device {sender} sends {message.size} bytes where its protocol announces "
            f"{largest} at most"
        )
    return message
