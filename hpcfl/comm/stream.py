"""A gather as a stream: devices compute while others send, and while the server adds up.

The ids go by in windows. What a rank's devices send in a window is one *frame*: the sizes of their
messages, then the messages end to end. A rank makes its next frame while the last one is on its
way, and the server posts the receives of the next window before it looks into this one, so that it
holds two windows at most. Nobody waits for a rank whose turn has not come. Both let the library go
on after every message that they make or use: a sender waits for a server at work for no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate, cycle

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcfl.comm import envelope
from hpcfl.comm.calls import Calls, WaitsFor
from hpcfl.comm.patient import Comm, complete
from hpcfl.comm.phases import Payload
from hpcfl.comm.placement import Placement, within
from hpcfl.comm.scratch import Scratch
from hpcfl.comm.star import SERVER_RANK
from hpcfl.comm.transport import WINDOW_BYTES, Cuts, Part
from hpcfl.errors import HpcflError

Produce = Callable[[int], Payload]
Begin = Callable[[], MPI.Request]

# No call moves more than this: MPI counts with 32 bits.
CALL_BYTES = 1 << 30
# A part of a message has at least so many bytes, however many ranks send one.
LEAST_PART_BYTES = 1 << 18
SIZES, MESSAGES, COUNT = 1, 2, 3  # tags


def in_parts(largest: int) -> bool:
    """Return whether messages up to this size are so long that they are received in parts."""
    return largest > WINDOW_BYTES


def windows(placement: Placement, largest: int, limit: int) -> list[range]:
    """Return the ids in pieces whose messages, `largest` bytes each, come to the limit at most.

    At least one id a piece, and if possible as many of each rank that holds devices.
    """
    at_once, ranks = (
        max(1, limit // largest),
        max(1, placement.ranks - placement.servers - placement.helpers),
    )
    if at_once > ranks:
        at_once -= at_once % ranks
    parties = placement.parties
    return [range(first, min(first + at_once, parties)) for first in range(0, parties, at_once)]


class Stream:
    """One gather as seen from a rank; `largest` as for `Transport.gather`.

    Two frames, at the server two windows, are there at a time, in the two scratches. Each window is
    a call of its own in the notes, which are continued.
    """

    def __init__(
        self,
        comm: Comm,
        placement: Placement,
        largest: int,
        scratches: Sequence[Scratch],
        calls: Calls,
    ) -> None:
        self._comm = comm
        self._placement = placement
        self._largest = largest
        self._scratches = scratches
        self._notes = calls
        self.windows = windows(placement, largest, WINDOW_BYTES)

    def send(self, senders: Collection[int], produce: Produce) -> None:
        """Send what this rank's devices have for the server."""
        local, there = self._placement.parties_on(self._comm.rank), {*senders}
        on_its_way = _Frame(self._comm, [])

        def produce_while_sending(id: int) -> Payload:
            message = produce(id)
            on_its_way.move()
            return message

        count = 0
        for number, window in enumerate(self.windows, self._notes.number):
            ids = within(local, window)
            if not ids:
                continue
            chosen = [id for id in ids if id in there]
            scratch = self._scratches[count % 2]
            payload, sizes = end_to_end(chosen, produce_while_sending, self._largest, scratch)
            told = np.zeros(len(ids), np.int64)
            told[[id in there for id in ids]] = sizes
            on_its_way.complete(self._notes, WaitsFor.SERVER)
            on_its_way = _Frame(
                self._comm,
                list(self._sends(len(ids), told, payload)),
                number,
                sends=True,
            )
            count += 1
            del payload
        on_its_way.complete(self._notes, WaitsFor.SERVER)

    def receive(self) -> Iterator[tuple[int, Payload]]:
        """Yield the id and the message of every device that sends one, by id; at the server."""
        posted = None
        for count, window in enumerate(self.windows):
            following = _Window(
                self._comm,
                self._placement,
                window,
                self._largest,
                self._scratches[count % 2],
                self._notes.number + count,
            )
            if posted is not None:
                for message in posted.messages(self._notes):
                    yield message
                    del message  # whose memory is taken again
                    following.move()
            posted = following
        if posted is not None:
            yield from posted.messages(self._notes)

    def _sends(self, ids: int, told: NDArray[np.int64], payload: Payload) -> Iterator[Begin]:
        """Yield what sends the messages of so many devices, and before them their sizes."""
        yield partial(self._comm.Isend, told, SERVER_RANK, SIZES)
        for part in _parts(ids * self._largest, CALL_BYTES):
            yield partial(self._comm.Isend, [payload[part], MPI.BYTE], SERVER_RANK, MESSAGES)


class PartStream(Stream):
    """A gather of messages so long that the server holds parts of them.

    A window has a device of each rank at most: their parts come at the same time, as many bytes of
    all together as another gather has in a window, and while the server uses them, the next.

    A server of several ranks receives some bytes of every message on each. The first one tells the
    others, window by window, which messages count.
    """

    def __init__(
        self,
        comm: Comm,
        placement: Placement,
        largest: int,
        scratches: Sequence[Scratch],
        calls: Calls,
        cuts: Cuts | None = None,  # None for a server of one rank
    ) -> None:
        super().__init__(comm, placement, largest, scratches, calls)
        self.windows = one_of_each_rank(placement)
        most = max(LEAST_PART_BYTES, WINDOW_BYTES // max(map(len, self.windows), default=1))
        self._step = max(1, most // envelope.PART_UNIT) * envelope.PART_UNIT
        self._cuts = cuts or Cuts([slice(0, largest)], lambda id: True)

    def _sends(self, ids: int, told: NDArray[np.int64], payload: Payload) -> Iterator[Begin]:
        for rank, cut in enumerate(self._cuts.slices):
            yield partial(self._comm.Isend, told, rank, SIZES)
            for part in self._parts(cut):
                yield partial(self._comm.Isend, [payload[part], MPI.BYTE], rank, MESSAGES)

    def _parts(self, cut: slice) -> list[slice]:
        """Return the parts in which a rank of the server receives its bytes."""
        # The first part of a message has the envelope in front.
        first = 0 if cut.start else envelope.BYTES
        return [
            slice(cut.start + part.start, min(cut.start + part.stop, cut.stop))
            for part in _parts(cut.stop - cut.start, self._step, first)
        ]

    def receive_parts(self) -> Iterator[tuple[int, Part]]:
        """Yield parts, and the ids of the devices that send them."""
        parts = self._parts(self._cuts.slices[self._comm.rank])
        turns = cycle(self._scratches)
        telling = _Frame(self._comm, [])
        last: _Parts | None = None
        for number, window in enumerate(self.windows, self._notes.number):
            heads = _Heads(self._comm, self._placement, window, number)
            for part in parts:
                following = _Parts(self._comm, heads, part, next(turns))
                if last is not None:
                    yield from last.received(self._notes, following.frame)
                    telling = self._tell(last.heads, telling)
                last = following
        if last is not None:
            yield from last.received(self._notes)
            telling = self._tell(last.heads, telling)
        telling.complete(self._notes, WaitsFor.NOBODY, further=True)

    def _tell(self, heads: _Heads, before: _Frame) -> _Frame:
        """Tell the other ranks of the server which messages of a window count, once, if any do."""
        others = range(1, len(self._cuts.slices)) if self._comm.rank == SERVER_RANK else ()
        if not others or heads.told:
            return before
        heads.told = True
        there = zip(heads.window, heads.sizes.tolist(), strict=True)
        count = [size > 0 and self._cuts.accepted(id) for id, size in there]
        before.complete(self._notes, WaitsFor.NOBODY, further=True)
        told = np.array(count, np.uint8)
        begin = [partial(self._comm.Isend, told, to, COUNT) for to in others]
        return _Frame(self._comm, begin, heads.number)


class _Heads:
    """What a rank of the server is told of the messages of a window before their first part."""

    def __init__(self, comm: Comm, placement: Placement, window: range, number: int) -> None:
        self.window = window
        self.number = number  # of the call in the notes
        self.ranks: list[int] = placement.homes[window.start : window.stop].tolist()
        self.sizes = np.zeros(len(window), np.int64)
        self.count = np.ones(len(window), np.uint8)  # whether it counts
        self.told = False  # whether other ranks know
        self.begin: list[Begin] = [
            partial(comm.Irecv, self.sizes[place : place + 1], rank, SIZES)
            for place, rank in enumerate(self.ranks)
        ]
        if comm.rank != SERVER_RANK:
            self.begin.append(partial(comm.Irecv, self.count, SERVER_RANK, COUNT))


class _Parts:
    """A part of every message of a window, on its way to a rank of the server."""

    def __init__(self, comm: Comm, heads: _Heads, part: slice, scratch: Scratch) -> None:
        self.heads = heads
        self._start = part.start
        length = part.stop - part.start
        memory = scratch.take(length * len(heads.ranks)).reshape(len(heads.ranks), length)
        self._rows = list(memory)
        begin = [
            partial(comm.Irecv, [row, MPI.BYTE], rank, MESSAGES)
            for rank, row in zip(heads.ranks, self._rows, strict=True)
        ]
        self._first = bool(heads.begin)
        self.frame = _Frame(comm, [*heads.begin, *begin], heads.number)
        heads.begin = []

    def received(self, calls: Calls, following: _Frame | None = None) -> Iterator[tuple[int, Part]]:
        """Wait for all, and yield those of messages that count, while the following ones come."""
        heads = self.heads
        # The first says how long the server waited for devices to compute.
        self.frame.complete(calls, WaitsFor.EVERYBODY, further=not self._first)
        each = zip(heads.window, heads.sizes.tolist(), heads.count.tolist(), strict=True)
        for (id, size, counts), row in zip(each, self._rows, strict=True):
            if counts and self._start < size:
                yield id, Part(size, self._start, row[: size - self._start])
            if following is not None:
                following.move()


def one_of_each_rank(placement: Placement) -> list[range]:
    """Return the ids in pieces in which no rank has two."""
    found: list[range] = []
    first, there = 0, set[int]()
    for id, rank in enumerate(placement.homes.tolist()):
        if rank in there:
            found.append(range(first, id))
            first, there = id, set()
        there.add(rank)
    return [*found, range(first, placement.parties)]


class _Frame:
    """Messages on their way: what began them is called at once."""

    def __init__(
        self, comm: Comm, begin: Sequence[Begin], number: int = -1, sends: bool = False
    ) -> None:
        self._comm = comm
        self._number = number
        self._sends = sends
        self._available = time.perf_counter()
        self._requests = [each() for each in begin]
        self._moved = not sends or MPI.Request.Testall(self._requests)
        self._posting_seconds = time.perf_counter() - self._available

    def move(self) -> None:
        """Let the library go on: most move nothing outside their calls."""
        if self._requests:
            start = time.perf_counter()
            self._move_on(start)
            self._posting_seconds += time.perf_counter() - start

    def _move_on(self, now: float) -> None:
        """Let messages move: what was sent and has not gone is available only from now on."""
        if not self._moved:
            self._available = now
        arrived = MPI.Request.Testall(self._requests)
        self._moved = self._moved or arrived

    def complete(self, calls: Calls, waits_for: WaitsFor, further: bool = False) -> None:
        """Wait until all messages are where they were to go, and note it.

        As `further` seconds in MPI of the call that has a note already, if it is that.
        """
        if not self._requests:
            return
        begin = time.perf_counter()
        self._move_on(begin)
        complete(self._comm, self._requests)
        end = time.perf_counter()
        self._requests = []
        if further:
            calls.more(self._number, end - begin + self._posting_seconds)
        else:
            calls.note(self._number, self._available, begin, end, waits_for, self._posting_seconds)


class _Window:
    """The receives of a window."""

    def __init__(
        self,
        comm: Comm,
        placement: Placement,
        window: range,
        largest: int,
        scratch: Scratch,
        number: int,
    ) -> None:
        self._window = window
        self._homes = placement.homes[window.start : window.stop]
        counts = np.bincount(self._homes, minlength=placement.ranks).tolist()
        starts = [0, *accumulate(counts)]
        self._sizes = np.empty(len(window), np.int64)  # by rank, as the frames
        self._frames = {
            rank: slice(start, start + count)
            for rank, (start, count) in enumerate(zip(starts, counts, strict=False))
            if count
        }
        self._largest = largest
        self._memory = scratch.take(largest * len(window))
        begin: list[Begin] = []
        for rank, frame in self._frames.items():
            begin.append(partial(comm.Irecv, self._sizes[frame], rank, SIZES))
            memory = self._memory[frame.start * largest : frame.stop * largest]
            begin += [
                partial(comm.Irecv, [memory[part], MPI.BYTE], rank, MESSAGES)
                for part in _parts(memory.size, CALL_BYTES)
            ]
        self._receives = _Frame(comm, begin, number)

    def move(self) -> None:
        """Let the library go on with these receives while the server is at work on others."""
        self._receives.move()

    def messages(self, calls: Calls) -> Iterator[tuple[int, Payload]]:
        """Wait for all, and yield the ids and messages in order of the ids."""
        self._receives.complete(calls, WaitsFor.EVERYBODY)
        ends = np.empty_like(self._sizes)
        for frame in self._frames.values():
            ends[frame] = frame.start * self._largest + np.cumsum(self._sizes[frame])
        by_rank = np.argsort(self._homes, kind="stable")
        sizes, stops = np.empty_like(self._sizes), np.empty_like(ends)
        sizes[by_rank], stops[by_rank] = self._sizes, ends
        for id, size, stop in zip(self._window, sizes.tolist(), stops.tolist(), strict=True):
            if size:
                yield id, self._memory[stop - size : stop]


def end_to_end(
    senders: Sequence[int], produce: Produce, largest: int, scratch: Scratch
) -> tuple[Payload, list[int]]:
    """Return the senders' messages, end to end, and how large each is.

    An HpcflError says that one is larger than the largest.
    """

    def made(sender: int) -> Payload:
        message = produce(sender)
        if message.size > largest:
            raise HpcflError(
                f"device {sender} sends {message.size} bytes where its protocol announces "
                f"{largest} at most"
            )
        return message

    if len(senders) == 1:
        message = made(senders[0])
        return message, [message.size]
    whole = scratch.take(largest * len(senders))
    sizes: list[int] = []
    end = 0
    for sender in senders:
        # Put away at once: it is still in the cache, and its memory becomes the next one's.
        message = made(sender)
        whole[end : end + message.size] = message
        sizes.append(message.size)
        end += message.size
        del message
    return whole[:end], sizes


def _parts(most: int, step: int, first: int = 0) -> Iterator[slice]:
    """Yield the parts of up to `most` bytes: `step` bytes each, the first so many more."""
    start = 0
    for stop in range(first + step, max(1, most) + step, step):
        yield slice(start, stop)
        start = stop
