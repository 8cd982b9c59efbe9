"""The processes of this run: one alone, or the ranks that a launcher started."""

from __future__ import annotations

import atexit
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hpcfl.comm.loopback import Loopback
from hpcfl.comm.placement import Placement
from hpcfl.comm.transport import Transport
from hpcfl.errors import AgreedUsageError, HpcflError, UsageError
from hpcfl.system import allocator, launch

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    from hpcfl.comm.faults import Survivors
    from hpcfl.comm.patient import Comm

    Array = NDArray[Any]

T = TypeVar("T")

MESSAGE_BYTES = 1 << 30
# Ranks that fail for the same reason fail together; one that waits longer failed alone.
TOGETHER_SECONDS = 10.0
LAST_WORDS_SECONDS = 0.3
# How long to look whether another rank fails, and the tag of the message that says so.
AT_ONCE_SECONDS = 2.0
FAILED_TAG = 1
_told: list[Any] = []  # kept while they are on their way


class World:
    """All processes of this run; `tolerant` if the other ranks can go on after one died.

    Messages of rounds never use the communicator of the world itself: it is kept free for ranks
    that fail.
    """

    def __init__(self, comm: MPI.Intracomm | None) -> None:
        self._control = comm.Dup() if comm is not None else None
        self.rank = comm.rank if comm is not None else 0
        self.size = comm.size if comm is not None else 1
        self.tolerant = False
        self._survivors: Survivors | None = None
        # Frees the communicators of the transports that are in use.
        self._frees: list[Callable[[], None]] = []
        self._patient = False
        if self._control is not None and self.size > 1:
            from hpcfl.comm import patient

            self._patient = patient.needed(self._control)
            self._tolerate(self._control)

    def _tolerate(self, control: MPI.Intracomm) -> None:
        """Prepare for the death of ranks, if MPI was started so that it can be survived."""
        from hpcfl.comm import faults

        # A lab's ranks talk over point-to-point messages of their own.
        if not launch.survives_deaths() or launch.netlab_facts():
            return
        self.tolerant = True
        self._survivors = faults.Survivors(control)
        atexit.register(faults.finalize)

    def _together(self, operation: Callable[[Comm], T]) -> T:
        """Return what an operation of all ranks returns; among those left, if ranks died."""
        assert self._control is not None
        if self._survivors is not None:
            return self._survivors.together(operation)
        return operation(self._waiting(self._control))

    def _waiting(self, comm: MPI.Intracomm) -> Comm:
        """Return a communicator whose ranks wait so that the others get on with their work."""
        if not self._patient:
            return comm
        from hpcfl.comm.patient import Patient

        return Patient(comm)

    def transport(
        self, devices: int, tolerant: bool = False, servers: int = 1, helpers: int = 0
    ) -> Transport | None:
        """Return the transport for a number of devices; None on a rank that is not needed.

        Fewer devices than device ranks use as many ranks as there are devices; the devices of a
        larger number share ranks. `tolerant`: the caller can go on when ranks die, where MPI can.
        It can be used until the next `settle`. The first `servers` ranks are the server together,
        the next `helpers` are helpers, unless there is one rank alone; a UsageError says on every
        rank that there are too few, or that they cannot.
        """
        placement = self.placement(devices, servers, helpers)
        if self._control is None or self.size == 1:
            return Loopback(devices, helpers)
        from mpi4py import MPI

        from hpcfl.comm.mpi import MpiTransport
        from hpcfl.comm.star import Star

        def split(control: Comm) -> MPI.Comm:
            # Of the ranks that are left, the first ones.
            needed = control.rank < devices + servers + helpers
            return control.Split(0 if needed else MPI.UNDEFINED, control.rank)

        comm = self._together(split)
        if comm == MPI.COMM_NULL:
            return None
        ranks = MPI.Intracomm(comm)
        if ranks.size < placement.ranks:
            placement = Placement.even(devices, ranks.size, servers, helpers)
        if self.tolerant:
            from hpcfl.comm import faults

            if tolerant:
                transport = faults.TolerantTransport(ranks, placement)
                self._frees.append(transport.free)
                return transport
            self._frees.append(faults.Survivors(ranks).free)
        else:
            self._frees.append(ranks.Free)
        return MpiTransport(
            Star(ranks) if launch.netlab_facts() else self._waiting(ranks), placement
        )

    def placement(self, devices: int, servers: int = 1, helpers: int = 0) -> Placement:
        """Return who is where in such a `transport`, before any rank has died."""
        if servers > 1:
            self._check_ranks("--server-ranks", servers, servers)
            if self.tolerant or launch.netlab_facts():
                where = "deaths of ranks are survived" if self.tolerant else "hosts are of a lab"
                raise AgreedUsageError(
                    f"--server-ranks is {servers}: one rank is the server where {where}",
                    UsageError.exit_status,
                )
        if helpers and self.size > 1:
            self._check_ranks("--helpers", helpers, servers + helpers)
        ranks = min(self.size, devices + servers + helpers)
        return Placement.even(devices, ranks, servers, helpers)

    def _check_ranks(self, option: str, given: int, taken: int) -> None:
        """Refuse so many ranks that are the server or helpers, if none is left for devices."""
        if self.size <= taken:
            ranks = f"{self.size} rank{'s' * (self.size > 1)}"
            raise AgreedUsageError(
                f"{option} is {given}: {ranks} cannot do that and hold devices: start {taken + 1} "
                "at least",
                UsageError.exit_status,
            )

    def rank_on_host(self) -> int:
        """Return the number of this rank among those of its host; every rank calls this."""
        if self._control is None:
            return 0
        from mpi4py import MPI

        neighbours = self._control.Split_type(MPI.COMM_TYPE_SHARED)
        rank = neighbours.rank
        neighbours.Free()
        return rank

    def raise_everywhere(self, error: HpcflError | None) -> None:
        """Raise rank 0's error, if it has one, on every rank."""
        if self._control is None:
            if error is not None:
                raise error
            return
        from hpcfl.comm.mpi import announce

        self._together(lambda control: announce(control, 0, error))

    def first_alone(self, work: Callable[[], T]) -> T | None:
        """Return what `work` returns on rank 0, None elsewhere; raise its error on every rank."""
        found, error = None, None
        if self.rank == 0:
            try:
                found = work()
            except HpcflError as problem:
                error = problem
        self.raise_everywhere(error)
        return found

    def agreed(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return on every rank what `work` returns on rank 0, of what JSON has; raise its error."""
        found = self.first_alone(work)
        if self._control is None:
            assert found is not None
            return found
        import json

        import numpy as np

        text = np.frombuffer(json.dumps(found).encode(), np.uint8)
        parts = [{"text": text}] * self.size if self.rank == 0 else None
        told: dict[str, Any] = json.loads(self.distribute(parts)["text"].tobytes())
        return told

    def tell(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        if self._control is None:
            return value
        from hpcfl.comm.mpi import announce

        return self._together(lambda control: announce(control, value, None))

    def settle(self, error: HpcflError | None) -> None:
        """Wait, without taking time from the ranks at work, until all are here; then agree.

        No transport is used any more: MPI keeps what was made for it until it is freed, and a sweep
        would leave that of every cell.
        """
        if self._control is not None:
            from hpcfl.comm.mpi import wait

            if self._survivors is None:
                wait(self._control.Ibarrier())
            else:
                from hpcfl.comm.faults import wait_for_all

                self._survivors.together(wait_for_all)
            while self._frees:
                self._frees.pop(0)()
        self.raise_everywhere(error)

    def distribute(self, parts: Sequence[Mapping[str, Array]] | None) -> dict[str, Array]:
        """Return this rank's part of what rank 0 has for all: arrays by name, None elsewhere."""
        if self._control is None:
            assert parts is not None
            return dict(parts[0])
        return self._together(lambda control: self._distribute(control, parts))

    def _distribute(
        self, comm: Comm, parts: Sequence[Mapping[str, Array]] | None
    ) -> dict[str, Array]:
        import json

        import numpy as np

        if parts is None:
            raw = np.empty(int(_receive(comm, np.empty(1, np.int64))[0]), np.uint8)
            layout = json.loads(_receive(comm, raw).tobytes())
            return {
                name: _receive(comm, np.empty(shape, dtype))
                for name, (shape, dtype) in layout.items()
            }
        started_as = self._survivors.ranks if self._survivors is not None else range(self.size)
        for rank in range(1, comm.size):
            part = parts[started_as[rank]]
            arrays = {name: np.ascontiguousarray(array) for name, array in part.items()}
            layout = {name: (array.shape, array.dtype.str) for name, array in arrays.items()}
            raw = np.frombuffer(json.dumps(layout).encode(), np.uint8).copy()
            comm.Send(np.array([raw.size], np.int64), rank)
            comm.Send(raw, rank)
            for array in arrays.values():
                # As bytes in pieces: one message carries less than 2 GiB.
                flat = array.reshape(-1).view(np.uint8)
                for start in range(0, flat.size, MESSAGE_BYTES):
                    comm.Send(flat[start : start + MESSAGE_BYTES], rank)
        return dict(parts[0])

    def facts(self) -> dict[str, Any]:
        """Return what is known about MPI, for the record."""
        if self._control is None:
            return {"transport": "loopback", "ranks": 1}
        from mpi4py import MPI

        levels = {
            MPI.THREAD_SINGLE: "single",
            MPI.THREAD_FUNNELED: "funneled",
            MPI.THREAD_SERIALIZED: "serialized",
            MPI.THREAD_MULTIPLE: "multiple",
        }
        described = MPI.Get_library_version().strip("\0\n ")
        # Open MPI's has the user who built it, in front of the host.
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
            "waits_asleep": self._patient,
        }

    def exchange(self, mine: Array, answer: Callable[[Array], Array], told: Array) -> Array | None:
        """Return every rank's array at rank 0, None elsewhere; fill `told` with this rank's answer.

        Rank 0 answers: `answer` takes the arrays of all ranks, of one shape and type, and returns
        a row for each of them, like `told`.
        """
        import numpy as np

        if self._control is None:
            told[...] = answer(mine[None])[0]
            return mine[None]

        def operation(control: Comm) -> Array | None:
            shape = (control.size, *mine.shape)
            rows = np.empty(shape, mine.dtype) if self.rank == 0 else None
            control.Gather(mine, rows)
            sizes = [told.size] * control.size
            control.Scatterv(None if rows is None else (answer(rows), sizes), told)
            return rows

        return self._together(operation)

    def collect(self, message: bytes) -> list[bytes] | None:
        """Return every rank's message, of any length, at rank 0; None elsewhere."""
        import numpy as np

        if self._control is None:
            return [message]
        mine = np.frombuffer(message, np.uint8)

        def operation(control: Comm) -> list[bytes] | None:
            sizes = np.empty(control.size, np.int64) if self.rank == 0 else None
            control.Gather(np.array([mine.size], np.int64), sizes)
            if sizes is None:
                if mine.size:
                    control.Send(mine, 0)
                return None
            found = [message, *(bytes(size) for size in sizes[1:].tolist())]
            for rank in (np.flatnonzero(sizes[1:]) + 1).tolist():
                buffer = np.empty(sizes[rank], np.uint8)
                control.Recv(buffer, rank)
                found[rank] = buffer.tobytes()
            return found

        return self._together(operation)

    def hosts(self) -> list[str]:
        """Return every rank's host name, at rank 0; an empty list elsewhere."""
        import platform

        found = self.collect(platform.node().encode())
        return [] if found is None else [name.decode(errors="replace") for name in found]


def _receive(comm: Comm, array: Array) -> Array:
    """Fill an array with what rank 0 sends."""
    import numpy as np

    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, MESSAGE_BYTES):
        comm.Recv(flat[start : start + MESSAGE_BYTES], 0)
    return array


_world: World | None = None


def connect() -> World:
    """Return the world, the same at each call; MPI is initialised if a launcher started ranks.

    Memory that this process frees stays with it from then on (`allocator`). A UsageError says that
    MPI cannot be loaded, or does not see the processes that were started.
    """
    global _world
    if _world is None:
        allocator.keep_freed()
        _world = _connect()
    return _world


def _connect() -> World:
    if not launch.launched_by_mpi():
        return World(None)
    comm = _world_communicator()
    started = launch.guess_size()
    if comm.size == 1 and started is not None and started > 1:
        raise UsageError(
            f"the launcher started {started} processes, but MPI sees each of them alone: the "
            "launcher belongs to another MPI than mpi4py loads; 'hpcfl doctor' says which"
        )
    return World(comm)


def _world_communicator() -> MPI.Intracomm:
    try:
        import mpi4py

        # One thread a rank talks to MPI; asking for more costs locks in the timed path.
        mpi4py.rc.thread_level = "funneled"
        # See faults.finalize.
        mpi4py.rc.finalize = not launch.survives_deaths()
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"MPI cannot be loaded: {error}; 'hpcfl doctor' says more") from None
    return MPI.COMM_WORLD


def fail(message: str, status: int) -> NoReturn:
    """End this process with an error that is a sentence.

    All ranks that fail together say it once and leave in order; a rank that fails alone says so and
    takes the others down.
    """
    if launch.works_alone():
        print(f"Error: {message}", file=sys.stderr)
        sys.exit(status)
    try:
        comm = _world_communicator()
    except UsageError:
        if launch.guess_rank() == 0:
            print(f"Error: {message}", file=sys.stderr, flush=True)
        sys.exit(status)
    from hpcfl.comm import faults
    from hpcfl.comm.mpi import wait

    tolerant = launch.survives_deaths() and bool(faults.DEATHS)
    speaker = faults.speaker(comm) if tolerant else 0
    if comm.rank == speaker:
        print(f"Error: {message}", file=sys.stderr, flush=True)
    if tolerant:
        atexit.register(faults.finalize)
        faults.will_end_with(status)
        together = faults.meet(comm, TOGETHER_SECONDS)
    else:
        together = wait(comm.Ibarrier(), TOGETHER_SECONDS)
    if not together:
        if comm.rank != speaker:
            if not tolerant and _is_said_by_another(comm):
                time.sleep(TOGETHER_SECONDS)  # within which that one ends this one too
            print(f"{_here(comm)} Error: {message}", file=sys.stderr, flush=True)
        _abort(comm, status)
    sys.exit(status)


def _is_said_by_another(comm: MPI.Intracomm) -> bool:
    """Return whether another rank, which is not the first, says why it fails at the same time.

    Of several that fail for one reason, as in code that all of them run, the lowest says it.
    """
    from mpi4py import MPI

    # Without a byte, and so without anybody who need receive it.
    def tell(ranks: range) -> None:
        _told.extend(comm.Isend([b"", 0, MPI.BYTE], rank, FAILED_TAG) for rank in ranks)

    tell(range(comm.rank + 1, comm.size))
    begin = time.monotonic()
    while time.monotonic() - begin < AT_ONCE_SECONDS:
        if comm.Iprobe(MPI.ANY_SOURCE, FAILED_TAG):
            return True
        time.sleep(0.01)
    tell(range(1, comm.rank))
    return False


def leave() -> NoReturn:
    """End this process, a device rank that has done its part and has nothing open.

    The interpreter is not taken down piece by piece, which takes as long as a tenth of its start.
    """
    if launch.survives_deaths() or "mpi4py.MPI" not in sys.modules:
        sys.exit(0)
    from mpi4py import MPI

    if MPI.get_vendor()[0] != "Open MPI":
        # MPICH 5 tells the launcher at the very end that this rank is done, which kills the job
        # if it never hears of it.
        sys.exit(0)
    MPI.Finalize()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def crash() -> None:
    """Print the current exception's traceback and end the whole job, if there are other ranks.

    That another rank died, where a command cannot go on without it, is said in a sentence.
    """
    if "mpi4py.MPI" not in sys.modules:
        return
    comm = _world_communicator()
    if comm.size == 1:
        return
    from hpcfl.comm import faults

    if launch.survives_deaths() and faults.is_death(sys.exc_info()[1]):
        if comm.rank != faults.speaker(comm):
            time.sleep(TOGETHER_SECONDS)
        print(
            "Error: a rank died, and this command cannot continue without it, as 'hpcfl bench' can",
            file=sys.stderr,
            flush=True,
        )
        _abort(comm, 1)
    lines = traceback.format_exc().rstrip().split("\n")
    print("\n".join(f"{_here(comm)} {line}" for line in lines), file=sys.stderr, flush=True)
    _abort(comm, 1)


def _abort(comm: MPI.Intracomm, status: int) -> NoReturn:
    """End all ranks, and this one also where MPI_Abort returns, as MPICH's can.

    Whatever followed would say the same again, or wait in MPI_Finalize for ranks that are gone.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # MPICH 4's launcher drops what it has not passed on of this rank's last words.
    time.sleep(LAST_WORDS_SECONDS)
    comm.Abort(status)
    os._exit(status)


def _here(comm: MPI.Intracomm) -> str:
    import platform

    return f"[rank {comm.rank} on {platform.node()}]"
