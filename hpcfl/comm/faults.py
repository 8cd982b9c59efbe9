"""Going on after ranks died: User Level Failure Mitigation (Bland et al. 2013), MPI's ULFM.

A rank that dies during a collective leaves the others in different states: some have finished it,
some have an error, some wait for one that has an error. So nothing that a collective brought is
used before all that are left have agreed that it succeeded everywhere. If it did not, they form a
new communicator and do the same operation again, from the same messages. Above this layer a dead
rank's devices are devices that sent nothing.

This needs Open MPI 5 or another MPI with ULFM, and ``mpirun --with-ft ulfm``: without it the same
calls exist, but the first death ends the job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hpcfl.comm import gather, mpi
from hpcfl.comm.calls import WaitsFor
from hpcfl.comm.patient import SELDOM, wait
from hpcfl.comm.phases import Payload
from hpcfl.comm.placement import SERVER_RANK, Placement, within
from hpcfl.comm.transport import Cuts, Failure, Produce
from hpcfl.errors import AgreedError, HpcflError, UsageError
from hpcfl.system import launch

T = TypeVar("T")
Note = Callable[[frozenset[int], float, float], None]

# Codes that say that a rank died, or that another rank noticed that one did. mpi4py 3 has none.
DEATHS = tuple(
    getattr(MPI, name)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    if hasattr(MPI, name)
)
# What else comes of a death, of a connection that broke before it was known why, or of a mistake.
DOUBTFUL = (MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN, MPI.ERR_IN_STATUS)
# What is gathered in one operation, if no window of a message of each rank is larger.
WINDOW_BYTES = 1 << 28
# An operation that fails so often without anybody dead fails for another reason.
MOST_TRIES = 3


class ServerLostError(HpcflError):
    """The server's rank died: nobody can go on."""


def is_death(error: BaseException | None) -> bool:
    """Return whether an error of MPI says that a rank died, or may be because one did."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in (*DEATHS, *DOUBTFUL)


class Survivors:
    """The ranks of a communicator, used by nobody else, that are left.

    `comm` is the communicator of those left, `ranks` are their ranks in the first one. `note` is
    called after every loss with the ranks that died and the seconds of a
    :class:`~hpcfl.comm.transport.Failure`.
    """

    def __init__(self, comm: MPI.Intracomm, note: Note | None = None) -> None:
        if not DEATHS:
            raise UsageError("ranks that survive deaths need mpi4py 4: start without --with-ft")
        self.comm = comm
        self.ranks = tuple(range(comm.size))
        self._group = comm.Get_group()
        self._note = note

    def together(self, operation: Callable[[MPI.Intracomm], T]) -> T:
        """Return what an operation of all ranks gives that succeeded on all that are left.

        It is called with the communicator, and with the next one whenever a rank died. An
        `AgreedError` is a result like others. Raises `ServerLostError` if the first rank 0 died.
        """
        before, start = self.ranks, time.perf_counter()
        detected = None
        in_vain = 0
        while True:
            # Kept until all agree: MPI may still write to the buffers of what failed.
            outcome, error = self._attempt(operation)
            if self._all(not is_death(error)):
                break
            detected = detected or time.perf_counter()
            left = self.ranks
            self._shrink()
            # As many tries on all ranks: they know as much of who is left.
            in_vain = in_vain + 1 if self.ranks == left else 0
            if in_vain == MOST_TRIES:
                raise HpcflError(f"MPI fails, and no rank is dead: {error or 'on another rank'}")
        died = frozenset(before) - frozenset(self.ranks)
        if detected is not None and died and self._note is not None:
            self._note(died, detected - start, time.perf_counter() - detected)
        if error is not None:
            raise error
        assert outcome is not None
        return outcome[0]

    def free(self) -> None:
        """Free the communicator; all that are left call this, and use it no more.

        Those before it are not freed, which would be a collective operation of the dead. Whoever
        dies in this one once all have agreed keeps nobody: MPI agrees once more as it frees.
        """
        self.together(lambda comm: None)
        self.comm.Free()
        self._group.Free()

    def _attempt(
        self, operation: Callable[[MPI.Intracomm], T]
    ) -> tuple[tuple[T] | None, Exception | None]:
        """Return what the operation gives, or its error if all ranks will know of it."""
        try:
            return (operation(self.comm),), None
        except AgreedError as error:
            return None, error
        except MPI.Exception as error:
            if not is_death(error):
                raise
            # Whoever waits for this rank, or for one that waits for it, must hear of it.
            self.comm.Revoke()
            return None, error

    def _all(self, succeeded: bool) -> bool:
        """Return whether all succeeded; the same answer on all ranks."""
        try:
            return bool(self.comm.Agree(int(succeeded)))
        except MPI.Exception as error:
            if not is_death(error):
                raise
            # Somebody died before saying. All that are left get this error, or none does.
            return False

    def _shrink(self) -> None:
        self.comm = MPI.Intracomm(self.comm.Shrink())
        self.ranks = _places(self.comm.Get_group(), self._group)
        if self.ranks[0] != SERVER_RANK:
            raise ServerLostError(
                "the server's rank died: the job ends here; the results file keeps all rounds "
                "that were finished"
            )


class TolerantTransport(mpi.MpiTransport):
    """The transport over MPI that goes on with the devices whose ranks are left."""

    _repeats = True

    def __init__(self, comm: MPI.Intracomm, placement: Placement) -> None:
        super().__init__(comm, placement)
        self._failures: list[Failure] = []
        self._failed: frozenset[int] = frozenset()
        self._survivors = Survivors(comm, self._note)

    def _together(self, operation: Callable[[], T], waits_for: WaitsFor) -> T:
        def attempt(comm: MPI.Intracomm) -> T:
            if comm is not self._comm:
                self._comm = comm
                self._ranks = self._survivors.ranks
                places = np.full(self.placement.ranks, mpi.NOWHERE, np.int64)
                places[list(self._ranks)] = np.arange(comm.size)
                self._rank_of = places[self.placement.homes]
            return operation()

        # Nobody leaves before all have agreed that it succeeded.
        with self.calls.call(WaitsFor.EVERYBODY):
            return self._survivors.together(attempt)

    def _note(self, ranks: frozenset[int], detect_seconds: float, recover_seconds: float) -> None:
        devices = frozenset(id for rank in ranks for id in self.placement.local(rank))
        self._failed |= devices
        self._failures.append(Failure(devices, detect_seconds, recover_seconds))

    def _gathered(
        self,
        senders: Sequence[int],
        produce: Produce,
        largest: int,
        in_parts: bool,
        cuts: Cuts | None = None,
    ) -> Iterator[tuple[int, Payload]]:
        """Gather whole messages: of one whose sender dies nothing may be in use."""
        # So that all devices compute at the same time, a window has one of each rank at least.
        limit = max(WINDOW_BYTES, self.placement.ranks * largest)
        for window in gather.windows(self.placement, largest, limit):
            chosen = within(senders, window)
            messages = {id: gather.made(id, produce, largest) for id in chosen}
            received = self._to_server(partial(self._gather_window, window, messages))
            del messages
            yield from received.items()

    def _gather_window(self, window: range, messages: dict[int, Payload]) -> dict[int, Payload]:
        """Return the messages of a window by id, at the server."""
        sizes = np.zeros(len(window), np.int64)
        for id, message in messages.items():
            sizes[id - window.start] = message.size
        self._comm.Allreduce(MPI.IN_PLACE, sizes, MPI.SUM)
        received = {}
        if self.has_server:
            sent = zip(window, sizes.tolist(), strict=True)
            received = {id: np.empty(size, np.uint8) for id, size in sent if size}
        self._move(
            [(int(self._rank_of[id]), message) for id, message in received.items()],
            [(SERVER_RANK, message) for message in messages.values()],
        )
        return received

    def wait_for_all(self) -> None:
        self._all_to_all(lambda: wait_for_all(self._survivors.comm))

    def free(self) -> None:
        """Free the communicator, as `Survivors` does."""
        self._survivors.free()

    @property
    def failed(self) -> frozenset[int]:
        return self._failed

    def take_failures(self) -> list[Failure]:
        taken, self._failures = self._failures, []
        return taken

    def select(self, ids: Sequence[int]) -> mpi.MpiTransport:
        """Return the transport of a round of some devices; it does not go on after a death."""
        if self._failed:
            raise HpcflError(
                f"{len(self._failed)} devices are on ranks that died, and rounds among some of the "
                "devices cannot go on without them: start again"
            )
        return super().select(ids)


def _places(some: MPI.Group, everybody: MPI.Group) -> tuple[int, ...]:
    """Return the ranks in the group of all of those in another group, in its order."""
    return tuple(MPI.Group.Translate_ranks(some, None, everybody))


def wait_for_all(comm: MPI.Intracomm, limit_seconds: float = float("inf")) -> bool:
    """Wait for all ranks without taking time from those at work; fails if one is dead.

    An agreement, as a nonblocking barrier says on standard error that it failed. Returns whether
    they came within the limit.
    """
    return wait([comm.Iagree(np.ones(1, np.int32))], None, SELDOM, limit_seconds)


def speaker(comm: MPI.Intracomm) -> int:
    """Return the lowest rank that is not known to be dead here."""
    dead = _places(comm.Get_failed(), comm.Get_group())
    return next(rank for rank in range(comm.size) if rank not in dead)


def meet(comm: MPI.Intracomm, limit_seconds: float) -> bool:
    """Return whether all ranks that are left called this within the limit."""
    try:
        return wait_for_all(comm, limit_seconds)
    except MPI.Exception as error:
        if not is_death(error):
            raise
        return True  # it ended, and somebody was missing


def finalize(status: int = 0) -> None:
    """End this process with a status if it is not 0, or after a death.

    MPI_Finalize is never called then: it may wait for the dead for ever, once in five times where
    two ranks had died (open-mpi/ompi issue 11404). No rank has more to say to another.
    """
    for output in (sys.stdout, sys.stderr):
        output.flush()
    if status or MPI.COMM_WORLD.Get_failed().size:
        launch.wait_for_turn()
        os._exit(status)
