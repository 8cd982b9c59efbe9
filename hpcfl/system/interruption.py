"""Signals that ask a run to stop: Ctrl-C, and those that schedulers send before they kill.

The request is noted, the round ends, and all ranks leave together. If the round takes too long, a
second thread ends the process, because the main one may be inside MPI, where no handler runs.
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

# Exit status of a stopped run that can be resumed: EX_TEMPFAIL of sysexits.h, "try again".
LEFT_STATUS = 75
# SIGUSR1 is an early warning; its sender lets the round end, however long that takes.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# mpirun kills within a second after these signals, Slurm after 30 seconds (KillWait).
URGENT = (signal.SIGINT, signal.SIGTERM)
# A round that has not ended this long after an urgent signal is given up.
DEADLINE_SECONDS = 6.0
# A signal repeated after this time is a second request; earlier, it may be the forwarded first one.
AGAIN_SECONDS = 0.5
# Last writes delay the end of the process by at most this time.
LAST_SECONDS = 2.0

_STOP = 0


class Left(AgreedError):
    """A signal stopped the run; the exit status is `LEFT_STATUS` if it can be resumed, else 1."""

    def __init__(self, message: str, *, resumable: bool = True) -> None:
        super().__init__(message, LEFT_STATUS if resumable else 1)


def _given_up() -> str:
    """Return what rank 0 prints if it is stopped while no results are written; "" on others."""
    if launch.guess_rank():
        return ""
    return f"stopped by a signal: what was at hand did not end within {DEADLINE_SECONDS:g} s"


class Interruption:
    """Whether a signal has asked this process to stop, and what happens then."""

    def __init__(self) -> None:
        self.asked = False
        self.resumable = True  # whether the run can be resumed if the round is given up
        self.advice = ""  # how to resume, if not as a single run is resumed
        self._mark: Callable[[], object] = str
        self._last_words: Callable[[], str] = _given_up

    def told_to_leave(self) -> bool:
        """Return whether a signal was received."""
        return self.asked

    @contextmanager
    def writing(self, mark: Callable[[], object], last_words: Callable[[], str]) -> Iterator[None]:
        """Set what a signal triggers while this rank writes results.

        Another thread calls `mark` as soon as a signal arrives, because a kill may follow. If the
        round is given up, that thread prints the sentence that `last_words` returns.
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
        """Wait for signals; end the process at the deadline or at a second request."""
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
                    # The main thread, which also sets this, may be inside MPI.
                    self.asked = True
                    _within(LAST_SECONDS, self._mark)
                received.setdefault(number, now)
                if number in URGENT:
                    if not first and now - received[number] > AGAIN_SECONDS:
                        self._leave()
                    deadline = min(deadline or now + DEADLINE_SECONDS, now + DEADLINE_SECONDS)

    def _leave(self) -> NoReturn:
        """End the process at once, without waiting for other threads."""

        def speak() -> None:
            sentence = self._last_words()
            if sentence:
                # Not print, whose lock another thread may hold.
                os.write(2, f"Error: {sentence}\n".encode())

        _within(LAST_SECONDS, speak)
        launch.wait_for_turn()
        os._exit(LEFT_STATUS if self.resumable else 1)


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call a function that may fail or never return, and wait for it at most `seconds`."""

    def suppressed() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=suppressed, daemon=True)
    # Without memory for a thread the function is not called, but the process must still end.
    with suppress(RuntimeError):
        thread.start()
        thread.join(seconds)


_current: Interruption | None = None


def current() -> Interruption:
    """Return the current state; outside of `noting_signals`, one that no signal changes."""
    return _current or Interruption()


@contextmanager
def noting_signals(*, to_the_end: bool = False) -> Iterator[Interruption]:
    """Note Ctrl-C, SIGTERM and SIGUSR1, which would otherwise end the process.

    After Ctrl-C or SIGTERM the process ends with `LEFT_STATUS` when `DEADLINE_SECONDS` have passed,
    or when the same signal comes again. Within another such context, or outside the main thread,
    this changes nothing.

    `to_the_end` says that the process ends after this context. An MPI rank then ignores these
    signals: if one ended the rank, the other ranks might wait for it in `MPI_Finalize` for ever.
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
            # The kernel ignores them, because Python removes its handlers before MPI_Finalize.
            ignored = to_the_end and launch.launched_by_mpi()
            signal.signal(number, signal.SIG_IGN if ignored else handler)
        os.write(told, bytes([_STOP]))
        thread.join()
        os.close(told)
        os.close(heard)
