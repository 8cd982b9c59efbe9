"""When a rank was in a call of the transport, and which ranks it waited for.

In a blocking call a rank waits until the others have entered the same call. So every rank notes
when its own part of a call was available and when it blocked. After the round, the notes of all
ranks, on one clock, tell how long each rank waited. The rest of a call is time in MPI.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

# Fields of a note: available, begin, end, waits for, seconds of posting.
NOTES = 5
_CLOCK_TIMES = slice(0, 3)
_POSTING = 4


class WaitsFor(IntEnum):
    """The ranks whose part of a call a rank needs before it can leave the call."""

    NOBODY = 0
    SERVER = 1
    EVERYBODY = 2


class Calls:
    """The notes of one rank on the calls of a round; all ranks number the calls alike."""

    def __init__(self) -> None:
        self.number = 0  # of the next call
        self._notes: dict[int, list[float]] = {}

    @contextmanager
    def call(self, waits_for: WaitsFor) -> Iterator[None]:
        """Note a call that blocks for as long as the context lasts."""
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
        """Note that this rank's part was there at `available`, and that it blocked until `end`.

        `posting_seconds` were spent in other MPI calls for the same messages. A second note on a
        call only adds to its time in MPI.
        """
        if number in self._notes:
            self._notes[number][_POSTING] += end - begin + posting_seconds
        else:
            self._notes[number] = [available, begin, end, waits_for, posting_seconds]

    def table(self, count: int, offset_seconds: float) -> NDArray[np.float64]:
        """Return the first calls on the server's clock, shape (count, NOTES); zeros if no note."""
        found = np.zeros((count, NOTES))
        for number, note in self._notes.items():
            if number < count:
                found[number] = note
                found[number, _CLOCK_TIMES] += offset_seconds
        return found


def split(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds in MPI and the seconds of waiting for others, each (ranks, calls).

    `table` holds the notes of all ranks, shape (ranks, calls, NOTES); the server's come first.
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
