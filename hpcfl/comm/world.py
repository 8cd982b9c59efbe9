"""The processes of this run: one alone, or the ranks that a launcher started."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hpcfl import launch
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.placement import Placement
from hpcfl.comm.transport import Transport
from hpcfl.errors import HpcflError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    Array = NDArray[Any]

MESSAGE_BYTES = 1 << 30
# Ranks that fail for the same reason fail together; one that waits longer failed alone.
TOGETHER_SECONDS = 10.0


class World:
    """All processes of this run.

    Messages of rounds never use the communicator of the world itself: it is kept free for ranks
    that fail.

    Attributes
    ----------
    rank, size : int
        This process, and how many there are.
    """

    def __init__(self, comm: MPI.Intracomm | None) -> None:
        self._control = comm.Dup() if comm is not None else None
        self.rank = comm.rank if comm is not None else 0
        self.size = comm.size if comm is not None else 1

    def transport(self, devices: int) -> Transport | None:
        """Return the transport for a number of devices; None on a rank that is not needed.

        Fewer devices than device ranks use as many ranks as there are devices; the devices of a
        larger number share ranks.
        """
        if self._control is None or self.size == 1:
            return Loopback(devices)
        from mpi4py import MPI

        from hpcfl.comm.mpi import MpiTransport
        from hpcfl.comm.star import Star

        taking_part = self.rank <= devices
        comm = self._control.Split(0 if taking_part else MPI.UNDEFINED, self.rank)
        if not taking_part:
            return None
        ranks = MPI.Intracomm(comm)
        return MpiTransport(
            Star(ranks) if launch.netlab_facts() else ranks, Placement.even(devices, comm.size)
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

    def agree(self, error: HpcflError | None) -> None:
        """Raise rank 0's error, if it has one, on every rank."""
        if self._control is None:
            if error is not None:
                raise error
            return
        from hpcfl.comm.mpi import announce

        announce(self._control, 0, error)

    def tell(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        if self._control is None:
            return value
        from hpcfl.comm.mpi import announce

        return announce(self._control, value, None)

    def settle(self, error: HpcflError | None) -> None:
        """Wait, without taking time from the ranks at work, until all are here; then agree."""
        if self._control is not None:
            from hpcfl.comm.mpi import wait

            wait(self._control.Ibarrier())
        self.agree(error)

    def distribute(self, parts: Sequence[Mapping[str, Array]] | None) -> dict[str, Array]:
        """Return this rank's part of what rank 0 has for all.

        Parameters
        ----------
        parts : sequence of dict, or None
            At rank 0, one dict of arrays for each rank; None elsewhere.
        """
        import json

        import numpy as np

        if self._control is None:
            assert parts is not None
            return dict(parts[0])
        comm = self._control
        if parts is None:
            raw = np.empty(int(_receive(comm, np.empty(1, np.int64))[0]), np.uint8)
            layout = json.loads(_receive(comm, raw).tobytes())
            return {
                name: _receive(comm, np.empty(shape, dtype))
                for name, (shape, dtype) in layout.items()
            }
        for rank, part in enumerate(parts):
            if rank == 0:
                continue
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
        library = MPI.Get_library_version().strip("\0\n ").partition("\n")[0]
        lab = launch.netlab_facts()
        among_ranks = "netlab" if lab else "mpi"
        return {
            "transport": among_ranks if self.size > 1 else "loopback",
            **lab,
            "ranks": self.size,
            "mpi_library": library.partition(",")[0],
            "mpi_library_text": library,
            "mpi_standard": ".".join(str(part) for part in MPI.Get_version()),
            "thread_level": levels[MPI.Query_thread()],
        }

    def hosts(self) -> list[str]:
        """Return every rank's host name, at rank 0; an empty list elsewhere."""
        import platform

        import numpy as np

        mine = np.zeros(64, np.uint8)
        name = platform.node().encode()[: mine.size]
        mine[: len(name)] = np.frombuffer(name, np.uint8)
        if self._control is None:
            return [platform.node()]
        everybody = np.empty((self.size, mine.size), np.uint8) if self.rank == 0 else None
        self._control.Gather(mine, everybody)
        if everybody is None:
            return []
        return [row.tobytes().rstrip(b"\0").decode() for row in everybody]


def _receive(comm: MPI.Intracomm, array: Array) -> Array:
    """Fill an array with what rank 0 sends."""
    import numpy as np

    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, MESSAGE_BYTES):
        comm.Recv(flat[start : start + MESSAGE_BYTES], 0)
    return array


def connect() -> World:
    """Return the world, having initialised MPI if a launcher started this process.

    Raises
    ------
    UsageError
        If MPI cannot be loaded, or does not see the processes that the launcher started.
    """
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
    if comm.rank == 0:
        print(f"Error: {message}", file=sys.stderr, flush=True)
    from hpcfl.comm.mpi import wait

    if not wait(comm.Ibarrier(), TOGETHER_SECONDS):
        if comm.rank != 0:
            print(f"{_here(comm)} Error: {message}", file=sys.stderr, flush=True)
        comm.Abort(status)
    sys.exit(status)


def crash() -> None:
    """Print the current exception's traceback and end the whole job, if there are other ranks."""
    if "mpi4py.MPI" not in sys.modules:
        return
    comm = _world_communicator()
    if comm.size == 1:
        return
    lines = traceback.format_exc().rstrip().split("\n")
    print("\n".join(f"{_here(comm)} {line}" for line in lines), file=sys.stderr, flush=True)
    comm.Abort(1)


def _here(comm: MPI.Intracomm) -> str:
    import platform

    return f"[rank {comm.rank} on {platform.node()}]"
