"""When a rank was in the transport, and for whom it waited.

In a blocking call a rank waits for others as long as they have not come to theirs. So every rank
notes when its own part of a call was there, and when it blocked; how long it waited follows from
the notes of all ranks, on one clock, after the round. What is left of a call is time in MPI.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

# Of a note: available, begin, end, waits for, seconds of posting.
NOTES = 5
_CLOCK_TIMES = slice(0, 3)
_POSTING = 4


class WaitsFor(IntEnum):
    """Whose part of a call a rank needs to leave it."""

    NOBODY = 0
    SERVER = 1
    EVERYBODY = 2


class Calls:
    """The notes of one rank on the calls of a round, which all ranks number alike."""

    def __init__(self) -> None:
        self.number = 0  # of the next call
        self._notes: dict[int, list[float]] = {}

    @contextmanager
    def call(self, waits_for: WaitsFor) -> Iterator[None]:
        """Note a call that blocks from the beginning to the end."""
        number, self.number = self.number, self.number + 1
        begin = time.perf_counter()
        yield
        self.note(number, begin, begin, time.perf_counter(), waits_for)

    def note(
        self,
        number: int,
        available: float,
        begin: float,
        end: float,
        waits_for: WaitsFor,
        posting_seconds: float = 0.0,
    ) -> None:
        """Note a call whose part was available at a time, and which blocked from `begin` to `end`.

        `posting_seconds` were spent in other calls of MPI for the same messages. A call that has a
        note already was only in MPI for longer.
        """
        if number in self._notes:
            self._notes[number][_POSTING] += end - begin + posting_seconds
        else:
            self._notes[number] = [available, begin, end, waits_for, posting_seconds]

    def table(self, count: int, offset_seconds: float) -> NDArray[np.float64]:
        """Return the first calls on the server's clock, shape (count, NOTES); zeros for no part."""
        found = np.zeros((count, NOTES))
        for number, note in self._notes.items():
            if number < count:
                found[number] = note
                found[number, _CLOCK_TIMES] += offset_seconds
        return found


def split(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds in MPI, and those of waiting for others, each of shape (ranks, calls).

    The table has the notes of all ranks, shape (ranks, calls, NOTES), the server's first.
    """
    available, begin, end, waits_for, posting = np.moveaxis(table, -1, 0)
    there = end > 0
    known = np.where(there, available, -np.inf)
    latest = {
        WaitsFor.SERVER: known[:1],
        WaitsFor.EVERYBODY: known.max(axis=0, initial=-np.inf, keepdims=True),
    }
    ready = np.full(known.shape, -np.inf)
    for who, time_of_last in latest.items():
        ready = np.where(there & (waits_for == who), time_of_last, ready)
    waited = np.clip(ready - begin, 0, end - begin)
    return end - begin + posting - waited, waited
