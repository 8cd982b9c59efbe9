"""The processes of this run: a single one, or the ranks that a launcher started."""

from __future__ import annotations

import ast
import atexit
import io
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from hpcfl.comm.loopback import Loopback
from hpcfl.comm.placement import Placement
from hpcfl.comm.transport import Transport
from hpcfl.errors import AgreedError, AgreedUsageError, HpcflError, UsageError
from hpcfl.system import allocator, launch, machine

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    from hpcfl.comm.faults import Survivors
    from hpcfl.comm.patient import Comm

    Array = NDArray[Any]

T = TypeVar("T")
_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")


class World:
    """All processes of this run; `tolerant` if the other ranks can continue after a death.

    Rounds use other communicators, so the world's is always free for ranks that fail.
    """

    def __init__(self, comm: MPI.Intracomm | None) -> None:
        self._control = comm.Dup() if comm is not None else None
        self._waits: Comm | None = self._control  # the same, for blocking calls
        self.rank = comm.rank if comm is not None else 0
        self.size = comm.size if comm is not None else 1
        self.tolerant = False
        self._survivors: Survivors | None = None
        # Functions that free the communicators of the transports in use.
        self._frees: list[Callable[[], None]] = []
        self._asleep: Callable[[MPI.Intracomm], Comm] | None = None
        if self._control is not None and self.size > 1:
            from hpcfl.comm import faults, patient

            self._asleep = patient.asleep(self._control)
            self._waits = self._waiting(self._control)
            # The ranks of a netlab use their own point-to-point collectives.
            if launch.survives_deaths() and not launch.netlab_facts():
                self.tolerant = True
                self._survivors = faults.Survivors(self._control)
                atexit.register(faults.finalize)

    def _together(self, operation: Callable[[Comm], T]) -> T:
        """Return the result of an operation of all ranks, or of all survivors after a death."""
        assert self._waits is not None
        if self._survivors is not None:
            return self._survivors.together(operation)
        return operation(self._waits)

    def _waiting(self, comm: MPI.Intracomm) -> Comm:
        """Return the communicator, wrapped so that waiting ranks sleep if that is needed."""
        return comm if self._asleep is None else self._asleep(comm)

    def transport(
        self, devices: int, tolerant: bool = False, servers: int = 1, helpers: int = 0
    ) -> Transport | None:
        """Return the transport for a number of devices; None on a rank that is not needed.

        The first `servers` ranks form the server, the next `helpers` ranks are helpers, and the
        devices share the other ranks, at most one rank per device. A single rank holds all parties.
        The transport can be used until the next `settle`. With `tolerant`, the caller can continue
        after the death of a rank, if MPI can.
        """
        placement = self.placement(devices, servers, helpers)
        if self._control is None or self.size == 1:
            return Loopback(devices, helpers)
        from mpi4py import MPI

        from hpcfl.comm import faults
        from hpcfl.comm.mpi import MpiTransport
        from hpcfl.comm.star import Star

        def split(control: Comm) -> MPI.Comm:
            # The first ones of the surviving ranks.
            needed = control.rank < devices + servers + helpers
            return control.Split(0 if needed else MPI.UNDEFINED, control.rank)

        comm = self._together(split)
        if comm == MPI.COMM_NULL:
            return None
        ranks = MPI.Intracomm(comm)
        if ranks.size < placement.ranks:
            placement = Placement.even(devices, ranks.size, servers, helpers)
        if self.tolerant and tolerant:
            transport = faults.TolerantTransport(ranks, placement)
            self._frees.append(transport.free)
            return transport
        waiting = Star(ranks) if launch.netlab_facts() else self._waiting(ranks)
        self._frees.append(faults.Survivors(ranks).free if self.tolerant else ranks.Free)
        return MpiTransport(waiting, placement)

    def placement(self, devices: int, servers: int = 1, helpers: int = 0) -> Placement:
        """Return the placement of such a `transport` before any rank has died.

        Raise AgreedUsageError if there are too few ranks, or if the server must have one rank.
        """
        if servers > 1 and (self.tolerant or launch.netlab_facts()):
            where = "deaths of ranks are survived" if self.tolerant else "hosts are of a lab"
            raise AgreedUsageError(
                f"--server-ranks is {servers}: one rank is the server where {where}",
                UsageError.exit_status,
            )
        taken = servers + (helpers if self.size > 1 else 0)
        if taken > 1 and self.size <= taken:
            option = f"--helpers is {helpers}" if helpers else f"--server-ranks is {servers}"
            ranks = f"{self.size} rank{'s' * (self.size > 1)}"
            raise AgreedUsageError(
                f"{option}: {ranks} cannot do that and hold devices: start {taken + 1} at least",
                UsageError.exit_status,
            )
        ranks_used = min(self.size, devices + servers + helpers)
        return Placement.even(devices, ranks_used, servers, helpers)

    @property
    def left(self) -> Sequence[int]:
        """The ranks that are not known to be dead, with their original numbers."""
        return range(self.size) if self._survivors is None else self._survivors.ranks

    def rank_on_host(self) -> int:
        """Return the number of this rank among the ranks of its host; every rank calls this."""
        if self._control is None:
            return 0
        from mpi4py import MPI

        neighbours = self._control.Split_type(MPI.COMM_TYPE_SHARED)
        rank = neighbours.rank
        neighbours.Free()
        return rank

    def tell(self, value: int, error: HpcflError | None = None) -> int:
        """Return rank 0's value on every rank, or raise its error there."""
        if self._control is None:
            if error is not None:
                raise error
            return value
        from hpcfl.comm.mpi import announce

        return self._together(lambda control: announce(control, value, error))

    def raise_everywhere(self, error: HpcflError | None) -> None:
        """Raise rank 0's error, if it has one, on every rank."""
        self.tell(0, error)

    def first_alone(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work` on rank 0, None elsewhere; raise its error on every rank."""
        found, error = None, None
        if self.rank == 0:
            try:
                found = work()
            except HpcflError as problem:
                error = problem
        self.raise_everywhere(error)
        return found

    def agreed(self, work: Callable[[], T]) -> T:
        """Return on every rank the literal that `work` returns on rank 0, or raise its error."""
        text = repr(self.first_alone(work)).encode()
        told: T = ast.literal_eval(self.give([text] * self.size).decode())
        return told

    def settle_after(self, work: Callable[[], T]) -> T:
        """Return the result of `work` on this rank once all ranks have settled.

        Raise on every rank an `AgreedError`, or an error of rank 0. Others are raised here at once.
        """
        found, error = None, None
        try:
            found = work()
        except HpcflError as problem:
            if self.rank and not isinstance(problem, AgreedError):
                raise
            error = problem
        self.settle(error)
        return cast("T", found)

    def settle(self, error: HpcflError | None) -> None:
        """Wait, asleep, until all ranks call this; then raise rank 0's error on all, if any.

        This frees the communicators of all transports, which must not be used afterwards.
        """
        if self._control is not None:
            from hpcfl.comm import faults, patient

            if self._survivors is None:
                patient.wait([self._control.Ibarrier()], pace=patient.SELDOM)
            else:
                self._survivors.together(faults.wait_for_all)
            while self._frees:
                self._frees.pop(0)()
        self.raise_everywhere(error)

    def give(self, messages: Sequence[bytes]) -> bytes:
        """Return rank 0's message for this rank; `messages` has one for each started rank."""
        if self._control is None:
            return messages[0]
        from hpcfl.comm.mpi import receive, send

        def operation(control: Comm) -> bytes:
            if control.rank:
                return receive(control, 0).tobytes()
            for rank, started_as in enumerate(self.left[1:], 1):
                send(control, np.frombuffer(messages[started_as], np.uint8), rank)
            return messages[0]

        return self._together(operation)

    def distribute(self, parts: Sequence[Mapping[str, Array]] | None) -> dict[str, Array]:
        """Return this rank's arrays by name; rank 0 gives `parts` for all ranks, others None."""
        messages = []
        for part in parts or ():
            file = io.BytesIO()
            np.savez(file, **part)  # type: ignore[arg-type]
            messages.append(file.getvalue())
        with np.load(io.BytesIO(self.give(messages)), allow_pickle=False) as arrays:
            return dict(arrays)

    def collect(self, message: bytes) -> list[bytes] | None:
        """Return the messages of all surviving ranks, of any length, at rank 0; None elsewhere."""
        if self._control is None:
            return [message]
        from hpcfl.comm.mpi import receive, send

        def operation(control: Comm) -> list[bytes] | None:
            if control.rank:
                send(control, np.frombuffer(message, np.uint8), 0)
                return None
            return [message, *(bytes(receive(control, rank)) for rank in range(1, control.size))]

        return self._together(operation)

    def hosts(self) -> list[str]:
        """Return every rank's host name, at rank 0; an empty list elsewhere."""
        found = self.collect(platform.node().encode())
        return [] if found is None else [name.decode(errors="replace") for name in found]

    def facts(self) -> dict[str, Any]:
        """Return the facts about MPI that results files record."""
        if self._control is None:
            return {"transport": "loopback", "ranks": 1}
        from mpi4py import MPI

        levels = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in _THREAD_LEVELS}
        described = MPI.Get_library_version().strip("\0\n ")
        # Open MPI's text has the user who built it, in front of the host.
        library = re.sub(r"\S+@", "", described.partition("\n")[0])
        device = re.search(r"^MPICH Device:\s*(\S+)", described, re.MULTILINE)
        lab = launch.netlab_facts()
        among_ranks = "netlab" if lab else "mpi"
        return {
            "transport": among_ranks if self.size > 1 else "loopback",
            **lab,
            "ranks": self.size,
            "fault_tolerance": "ulfm" if self.tolerant else None,
            "mpi_library": library.partition(",")[0],
            "mpi_library_text": library,
            "mpi_device": device[1] if device else None,
            "mpi_standard": ".".join(str(part) for part in MPI.Get_version()),
            "thread_level": levels[MPI.Query_thread()],
            "waits_asleep": self._asleep is not None,
        }


_world: World | None = None


def connect() -> World:
    """Return the world, the same at each call; initialise MPI if a launcher started ranks.

    Raise UsageError if MPI cannot be loaded or does not see the processes that were started.
    """
    global _world
    if _world is None:
        allocator.keep_freed()
        _world = World(_started() if launch.launched_by_mpi() else None)
    return _world


def _started() -> MPI.Intracomm:
    comm = communicator()
    started = launch.guess_size()
    if comm.size == 1 and started is not None and started > 1:
        raise UsageError(
            f"the launcher started {started} processes, but MPI sees each of them alone: the "
            "launcher belongs to another MPI than mpi4py loads; 'hpcfl doctor' says which"
        )
    return comm


def communicator() -> MPI.Intracomm:
    """Return the communicator of all started ranks; raise UsageError if MPI cannot be loaded."""
    try:
        import mpi4py

        # One thread per rank calls MPI. A higher level would cost locks in the timed path.
        mpi4py.rc.thread_level = "funneled"
        # See faults.finalize.
        mpi4py.rc.finalize = not launch.survives_deaths()
        # While ranks wait for each other to start, Open MPI polls every 0.1 ms.
        here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        machine.lengthen_sleeps(0.02 * (here > (os.cpu_count() or 1)))
        from mpi4py import MPI

        machine.lengthen_sleeps(0)
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"MPI cannot be loaded: {error}; 'hpcfl doctor' says more") from None
    return MPI.COMM_WORLD
