"""How messages move between the server and the devices: the interface of all transports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.calls import Calls
from hpcfl.comm.phases import Payload, Rows
from hpcfl.comm.placement import Placement
from hpcfl.comm.rows import Received
from hpcfl.crypto.groups import Elements
from hpcfl.errors import HpcflError
from hpcfl.values import dataclass

# The bytes that all ranks send in one window of a gather, unless a single message is larger.
WINDOW_BYTES = 1 << 25

Produce = Callable[[int], Payload]
AddInto = Callable[[Elements, Elements], None]


@dataclass(frozen=True)
class Part:
    """A part of a long message."""

    size: int  # of the whole message, in bytes
    start: int  # the offset of the part in the message, in bytes
    data: Payload  # its memory is reused


@dataclass(frozen=True)
class Failure:
    """Ranks whose deaths the others detected together."""

    devices: frozenset[int]  # that were on the dead ranks
    detect_seconds: float  # from the beginning of the failed operation to its error, on this rank
    recover_seconds: float  # from the error until the operation succeeded among the survivors


@dataclass(frozen=True)
class Cuts:
    """Which bytes of every message each rank of a server receives; the first gets the envelope.

    The other ranks use only messages that are `accepted` by the first rank, which decides after it
    has used its first part of a message.
    """

    slices: Sequence[slice]
    accepted: Callable[[int], bool]


class Transport(ABC):
    """Moves sealed messages. All ranks call the same methods in the same order."""

    name: str  # in results files

    def __init__(self, placement: Placement, rank: int) -> None:
        self.placement = placement
        self.rank = rank
        self.local_devices = placement.local(rank)  # in increasing order
        self.local_helpers = placement.parties_on(rank)[len(self.local_devices) :]
        self.calls = Calls()
        self.step = 0  # number of the step that is being played
        # The seconds to add to this rank's clock to get the server's, and their uncertainty.
        self.clock_offset_seconds = self.clock_uncertainty_seconds = 0.0

    @property
    def has_server(self) -> bool:
        """Whether the server is on this rank."""
        return self.rank == 0

    @property
    def helps_server(self) -> bool:
        """Whether this rank belongs to the server but is not its first rank."""
        return 0 < self.rank < self.placement.servers

    @property
    def failed(self) -> frozenset[int]:
        """The devices whose ranks are dead; between operations all survivors have the same set."""
        return frozenset()

    def take_failures(self) -> list[Failure]:
        """Return the failures since the last call."""
        return []

    @abstractmethod
    def select(self, ids: Sequence[int]) -> Transport:
        """Return the transport of a round of the devices `ids`, in order, renumbered from 0."""

    def raise_everywhere(self, error: HpcflError | None) -> None:
        """Raise the server's error, if it has one, on every rank; other ranks pass None."""
        self.tell(0, error)

    @abstractmethod
    def tell(self, value: int, error: HpcflError | None = None) -> int:
        """Return the server's value on every rank, or raise the server's error there."""

    @abstractmethod
    def broadcast(self, message: Payload | None, error: HpcflError | None = None) -> Payload:
        """Return the server's message on every rank, or raise the server's error there."""

    @abstractmethod
    def scatter(self, receivers: Sequence[int], produce: Produce) -> Iterator[tuple[int, Payload]]:
        """Yield ``(id, message)`` for every receiver on this rank, by id; every rank exhausts it.

        The server calls `produce` once for each of the N devices, in increasing order. It makes the
        device's message, which is empty if there is none.
        """

    @abstractmethod
    def gather(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        """Yield ``(id, message)`` of every sender at the server, by id; every rank exhausts it.

        Senders are devices or helpers. `produce` makes a sender's message of at most `largest`
        bytes. `largest` decides how many messages move at once.
        """

    def gather_parts(
        self, senders: Sequence[int], produce: Produce, largest: int, cuts: Cuts | None = None
    ) -> Iterator[tuple[int, Payload | Part]]:
        """Gather likewise, but yield long messages in parts if the transport supports it.

        The parts of one message come in order, between parts of others. Without the envelope, each
        part but the last has a multiple of `envelope.PART_UNIT` bytes. `cuts` puts all in parts.
        """
        return self.gather(senders, produce, largest)

    def to_server_ranks(self, message: Payload | None) -> Payload | None:
        """Return the first server rank's message on all ranks of the server, None elsewhere."""
        return message if self.has_server else None

    def join(self, mine: Elements | None, ranges: Sequence[range]) -> Elements | None:
        """Return, at the first server rank, the server ranks' pieces of a vector, end to end.

        Return None on other ranks, and if there are no pieces.
        """
        return mine

    @abstractmethod
    def reduce(
        self, senders: Sequence[int], produce: Produce, add_into: AddInto, zeros: Elements
    ) -> tuple[list[int], Elements] | None:
        """Return the ids of the senders and the sum of their vectors at the server; None elsewhere.

        `produce` makes a device's vector with the dtype and length of `zeros`, or an empty one.
        Sums start at `zeros` and are formed by `add_into`, which adds one vector to another.
        """

    @abstractmethod
    def route(
        self, senders: Sequence[int], rows: Iterable[Rows], width: int
    ) -> tuple[Iterator[tuple[int, Received]], NDArray[np.bool_]]:
        """Return the rows that each device of this rank received, and the senders of all ranks.

        `senders` are the devices of this rank that send; `rows` yields the sealed rows of each,
        shape (k, width). All rows have moved when this returns; the iterator frees them. The
        array, shape (N,), is true for devices that sent a row of that width to another device.
        """

    @abstractmethod
    def sum_to_server(self, values: NDArray[Any]) -> NDArray[Any] | None:
        """Return the element-wise sum over the ranks at the server; None elsewhere."""

    @abstractmethod
    def collect(self, values: NDArray[Any]) -> NDArray[Any] | None:
        """Return every rank's values at the server, shape (ranks, *shape); None elsewhere.

        A dead rank has zeros.
        """

    def max_to_server(self, value: float) -> float | None:
        """Return the maximum over the ranks of a value of at least 0, at the server; else None."""
        found = self.collect(np.array([value], float))
        return None if found is None else float(found.max())

    def plain_bytes_per_second(self) -> float | None:
        """Return the rate of plain messages to the server; None elsewhere and in one process."""
        return None

    def compare_clocks(self) -> None:  # noqa: B027 - one process has one clock
        """Measure the offset of this rank's clock again; all ranks call this, untimed."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def wait_for_all(self) -> None:
        """Wait for all ranks without taking CPU time from working ones; never in timed regions."""
