"""Continuing after ranks died: User Level Failure Mitigation (Bland et al. 2013), MPI's ULFM.

A rank that dies during a collective leaves the others in different states: some have finished it,
some have an error, some wait for a rank with an error. So the result of a collective is used only
after all surviving ranks have agreed that it succeeded everywhere. If it failed, they form a new
communicator and repeat the operation with the same messages. To the layers above, the devices of a
dead rank are devices that sent nothing.

This needs an MPI with ULFM, such as Open MPI 5, and ``mpirun --with-ft ulfm``. Without that option
the same calls exist, but the first death ends the job.
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

# Error codes for a death that this rank or another rank noticed. mpi4py 3 does not define them.
DEATHS = tuple(
    getattr(MPI, name)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    if hasattr(MPI, name)
)
# Error codes of a death, of a connection that broke before its cause was known, or of a bug.
DOUBTFUL = (MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN, MPI.ERR_IN_STATUS)
# The bytes of one operation of a gather, unless one message from each rank needs more.
WINDOW_BYTES = 1 << 28
# An operation that fails this often while no rank is dead fails for another reason.
MOST_TRIES = 3


class ServerLostError(HpcflError):
    """The server's rank died, so no rank can continue."""


def is_death(error: BaseException | None) -> bool:
    """Return whether a rank's death caused, or may have caused, an MPI error."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in (*DEATHS, *DOUBTFUL)


class Survivors:
    """The surviving ranks of a communicator that nothing else uses.

    `comm` is the communicator of the survivors, `ranks` are their ranks in the first communicator.
    `note` is called after every loss with the ranks that died and the two times of a
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
        """Return the result of an operation once it has succeeded on all surviving ranks.

        The operation is called with the communicator, and again with a new one whenever a rank
        died. An `AgreedError` counts as a result. Raise `ServerLostError` if the server has died.
        """
        before, start = self.ranks, time.perf_counter()
        detected = None
        in_vain = 0
        while True:
            # Kept until all agree: MPI may still write to the buffers of a failed operation.
            outcome, error = self._attempt(operation)
            if self._all(not is_death(error)):
                break
            detected = detected or time.perf_counter()
            left = self.ranks
            self._shrink()
            # All ranks count the same tries, because they agree on the survivors.
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
        """Free the communicator; all survivors call this, and do not use it afterwards.

        Earlier communicators are not freed: that would be a collective with dead ranks. A rank that
        dies here after the agreement blocks no other: MPI agrees once more as it frees.
        """
        self.together(lambda comm: None)
        self.comm.Free()
        self._group.Free()

    def _attempt(
        self, operation: Callable[[MPI.Intracomm], T]
    ) -> tuple[tuple[T] | None, Exception | None]:
        """Return the operation's result, or its error if all ranks will learn of the error."""
        try:
            return (operation(self.comm),), None
        except AgreedError as error:
            return None, error
        except MPI.Exception as error:
            if not is_death(error):
                raise
            # Ranks that wait for this one, directly or through others, must learn of the failure.
            self.comm.Revoke()
            return None, error

    def _all(self, succeeded: bool) -> bool:
        """Return whether all succeeded; the same answer on all ranks."""
        try:
            return bool(self.comm.Agree(int(succeeded)))
        except MPI.Exception as error:
            if not is_death(error):
                raise
            # A rank died before it answered. Either all survivors get this error, or none does.
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
    """The transport over MPI that continues with the devices on surviving ranks."""

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

        # No rank leaves before all have agreed that the operation succeeded.
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
        """Gather whole messages: no part of a message may be used if its sender can still die."""
        # A window has at least one device of each rank, so that all ranks compute at the same time.
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
        """Return the transport of a round of some devices; raise HpcflError after a death."""
        if self._failed:
            raise HpcflError(
                f"{len(self._failed)} devices are on ranks that died, and rounds among some of the "
                "devices cannot go on without them: start again"
            )
        return super().select(ids)


def _places(some: MPI.Group, everybody: MPI.Group) -> tuple[int, ...]:
    """Return the ranks in `everybody` of the members of `some`, in the order of `some`."""
    return tuple(MPI.Group.Translate_ranks(some, None, everybody))


def wait_for_all(comm: MPI.Intracomm, limit_seconds: float = float("inf")) -> bool:
    """Return whether all ranks came within the limit; raise an MPI error if one is dead.

    Waiting ranks sleep. This is an agreement, because a failed nonblocking barrier prints an error
    on standard error.
    """
    return wait([comm.Iagree(np.ones(1, np.int32))], None, SELDOM, limit_seconds)


def speaker(comm: MPI.Intracomm) -> int:
    """Return the lowest rank that this rank does not know to be dead."""
    dead = _places(comm.Get_failed(), comm.Get_group())
    return next(rank for rank in range(comm.size) if rank not in dead)


def meet(comm: MPI.Intracomm, limit_seconds: float) -> bool:
    """Return whether all surviving ranks called this within the limit."""
    try:
        return wait_for_all(comm, limit_seconds)
    except MPI.Exception as error:
        if not is_death(error):
            raise
        return True  # the agreement ended, and a dead rank was missing


def finalize(status: int = 0) -> None:
    """End this process if the status is not 0 or a rank has died.

    MPI_Finalize is not called in that case: it may wait for dead ranks forever, in one of five runs
    with two deaths (open-mpi/ompi issue 11404). The ranks have no more messages to exchange.
    """
    for output in (sys.stdout, sys.stderr):
        output.flush()
    if status or MPI.COMM_WORLD.Get_failed().size:
        launch.wait_for_turn()
        os._exit(status)
