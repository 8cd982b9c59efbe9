"""Signals that ask a run to leave: Ctrl-C, and what schedulers send before they kill.

The request is noted, the round ends, and all ranks leave together. Where the round cannot end in
time, a thread ends the process: the main one may be inside MPI, where Python runs no handlers.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from hpcfl.errors import AgreedError
from hpcfl.system import launch

# Of a run that was told to leave, and can go on: EX_TEMPFAIL of sysexits.h, "try again".
LEFT_STATUS = 75
# SIGUSR1 is an early warning: who sends it lets the round end, however long that takes.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# These are followed by a kill: mpirun's within a second, Slurm's after 30 (KillWait).
URGENT = (signal.SIGINT, signal.SIGTERM)
# A round that has not ended this long after an urgent signal is given up.
DEADLINE_SECONDS = 6.0
# The same signal once more is a second request; sooner, two launchers forwarded the same one.
AGAIN_SECONDS = 0.5
# Nothing that is still to be written delays leaving by more than this.
LAST_SECONDS = 2.0

_STOP = 0


class Left(AgreedError):
    """A run that was told to leave; its exit status is `LEFT_STATUS` if it can go on, else 1."""

    def __init__(self, message: str, *, resumable: bool = True) -> None:
        super().__init__(message, LEFT_STATUS if resumable else 1)


def _given_up() -> str:
    """Return what the first rank says that is stopped while no results are being written."""
    if launch.guess_rank():
        return ""
    return f"stopped by a signal: what was at hand did not end within {DEADLINE_SECONDS:g} s"


class Interruption:
    """Whether this process was told to leave."""

    def __init__(self) -> None:
        self.asked = False
        self.resumable = True  # whether what is given up can go on
        self.advice = ""  # how to go on, where that is not the way of a single run
        self._mark: Callable[[], object] = str
        self._last_words: Callable[[], str] = _given_up

    def told_to_leave(self) -> bool:
        """Return whether a signal was received."""
        return self.asked

    @contextmanager
    def writing(self, mark: Callable[[], object], last_words: Callable[[], str]) -> Iterator[None]:
        """Say what is to be done, on the rank that writes results, while they are written.

        Another thread calls `mark` as soon as a signal comes, because the process may be killed
        next, and `last_words` for the sentence to print when the round is given up.
        """
        self._mark, self._last_words = mark, last_words
        if self.asked:
            mark()
        try:
            yield
        finally:
            self._mark, self._last_words = str, _given_up

    def _note(self, *_: object) -> None:
        self.asked = True

    def _watch(self, heard: int) -> None:
        """Wait for signals; end the process when it is time."""
        received: dict[int, float] = {}
        deadline = None
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([heard], [], [], wait)[0]:
                self._leave()
            for number in os.read(heard, 64):
                if number == _STOP:
                    return
                if number not in SIGNALS:
                    continue
                now, first = time.monotonic(), number not in received
                if not received:
                    # The main thread, which also notes it, may be inside MPI.
                    self.asked = True
                    _within(LAST_SECONDS, self._mark)
                received.setdefault(number, now)
                if number in URGENT:
                    if not first and now - received[number] > AGAIN_SECONDS:
                        self._leave()
                    deadline = min(deadline or now + DEADLINE_SECONDS, now + DEADLINE_SECONDS)

    def _leave(self) -> NoReturn:
        """End the process at once; what other threads are at is lost."""

        def speak() -> None:
            sentence = self._last_words()
            if sentence:
                # Not print, whose lock another thread may hold.
                os.write(2, f"Error: {sentence}\n".encode())

        _within(LAST_SECONDS, speak)
        launch.wait_for_turn()
        os._exit(LEFT_STATUS if self.resumable else 1)


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call something that may fail, and may never return."""

    def suppressed() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=suppressed, daemon=True)
    # Without memory for a thread nothing is said or marked, but the process must end.
    with suppress(RuntimeError):
        thread.start()
        thread.join(seconds)


_current: Interruption | None = None


def current() -> Interruption:
    """Return what notes signals now; outside of `noting_signals` what never hears of one."""
    return _current or Interruption()


@contextmanager
def noting_signals(*, to_the_end: bool = False) -> Iterator[Interruption]:
    """Note Ctrl-C, SIGTERM and SIGUSR1 instead of dying of them.

    After Ctrl-C or SIGTERM the process ends with `LEFT_STATUS` when `DEADLINE_SECONDS` have passed,
    or when the same signal comes again. Within another such context, and in a thread that is not
    the main one, this changes nothing.

    `to_the_end` says that nothing but the end of the process follows. A rank of MPI then ignores
    these signals: if it died of one, the others might wait for it in `MPI_Finalize` for ever.
    """
    global _current
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield _current or Interruption()
        return
    interruption = Interruption()
    heard, told = os.pipe()
    os.set_blocking(told, False)
    thread = threading.Thread(target=interruption._watch, args=(heard,), daemon=True)
    thread.start()
    handlers = {number: signal.signal(number, interruption._note) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    _current = interruption
    try:
        yield interruption
    finally:
        _current = None
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            # By the kernel, as Python's handlers are gone before MPI_Finalize.
            ignored = to_the_end and launch.launched_by_mpi()
            signal.signal(number, signal.SIG_IGN if ignored else handler)
        os.write(told, bytes([_STOP]))
        thread.join()
        os.close(told)
        os.close(heard)
