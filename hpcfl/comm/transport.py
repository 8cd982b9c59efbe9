"""How messages move between the server and the devices: the interface of all transports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.calls import Calls
from hpcfl.comm.phases import Payload, Rows
from hpcfl.comm.placement import Placement
from hpcfl.comm.rows import Received
from hpcfl.crypto.groups import Elements
from hpcfl.errors import HpcflError

# What all ranks send in a window of a gather, if no single message is larger.
WINDOW_BYTES = 1 << 25

Produce = Callable[[int], Payload]
AddInto = Callable[[Elements, Elements], None]


@dataclass(frozen=True)
class Part:
    """A part of a long message."""

    size: int  # of all of it, in bytes
    start: int  # the part's first byte
    data: Payload  # whose memory is used again


@dataclass(frozen=True)
class Failure:
    """Ranks that died together, as far as the others could tell."""

    devices: frozenset[int]  # that were on them
    detect_seconds: float  # from the beginning of the operation that failed, on this rank
    recover_seconds: float  # from then on until it succeeded among those left


@dataclass(frozen=True)
class Cuts:
    """Which bytes of every message each rank of a server receives, the first of them the envelope.

    The other ranks only receive those of messages that the first one, once it has used its first
    part, finds to be `accepted`.
    """

    slices: Sequence[slice]
    accepted: Callable[[int], bool]


class Transport(ABC):
    """Moves sealed messages. All ranks call the same methods in the same order."""

    name: str  # how results call it

    def __init__(self, placement: Placement, rank: int) -> None:
        self.placement = placement
        self.rank = rank
        self.local_devices = placement.local(rank)  # in increasing order
        self.local_helpers = placement.parties_on(rank)[len(self.local_devices) :]
        self.calls = Calls()
        # To be added to this rank's clock to have the server's, and by how much it may be off.
        self.clock_offset_seconds = self.clock_uncertainty_seconds = 0.0

    @property
    def has_server(self) -> bool:
        """Whether the server is on this rank."""
        return self.rank == 0

    @property
    def helps_server(self) -> bool:
        """Whether this rank is one of the server's, and not the first of them."""
        return 0 < self.rank < self.placement.servers

    @property
    def failed(self) -> frozenset[int]:
        """The devices whose ranks are dead; the same on all others between two operations."""
        return frozenset()

    def take_failures(self) -> list[Failure]:
        """Return the failures since the last call."""
        return []

    @abstractmethod
    def select(self, ids: Sequence[int]) -> Transport:
        """Return the transport of a round of some devices, in increasing order; numbered from 0."""

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
        """Yield ``(id, message)`` of every receiver on this rank, by id; to be exhausted on each.

        `produce` makes the message for a device, empty if there is none: at the server, once for
        each of the N devices, in increasing order.
        """

    @abstractmethod
    def gather(
        self, senders: Sequence[int], produce: Produce, largest: int
    ) -> Iterator[tuple[int, Payload]]:
        """Yield ``(id, message)`` of every sender at the server, by id; to be exhausted on each.

        Senders are devices, or helpers. `produce` makes the message of one, of at most `largest`
        bytes, which decides how many move at once.
        """

    def gather_parts(
        self, senders: Sequence[int], produce: Produce, largest: int, cuts: Cuts | None = None
    ) -> Iterator[tuple[int, Payload | Part]]:
        """Do the same, with long messages in parts where the transport can do that.

        The parts of a message come in order, those of several in turns. Behind the envelope, each
        but the last is a multiple of `envelope.PART_UNIT` bytes. With `cuts` all come in parts.
        """
        return self.gather(senders, produce, largest)

    def to_server_ranks(self, message: Payload | None) -> Payload | None:
        """Return the first server rank's message on all ranks of the server, None elsewhere."""
        return message if self.has_server else None

    def join(self, mine: Elements | None, ranges: Sequence[range]) -> Elements | None:
        """Return at the first server rank what all of them have of a vector, end to end; else None.

        None, too, if they have nothing.
        """
        return mine

    @abstractmethod
    def reduce(
        self, senders: Sequence[int], produce: Produce, add_into: AddInto, zeros: Elements
    ) -> tuple[list[int], Elements] | None:
        """Return who sent, and the sum of their vectors, at the server; None elsewhere.

        Here `produce` makes a device's vector, of the dtype and length of `zeros`, or an empty one.
        Every sum is formed by `add_into`, which adds a vector to another; the first is `zeros`.
        """

    @abstractmethod
    def route(
        self, senders: Sequence[int], rows: Iterable[Rows], width: int
    ) -> tuple[Iterator[tuple[int, Received]], NDArray[np.bool_]]:
        """Return what each device of this rank received, by id, and who took part, shape (N,).

        `senders` are the devices of this rank that send, `rows` yields the sealed rows of each,
        shape (k, width). All have been moved when this returns, and are freed as the iterator goes
        on. Whoever sent a row that could be delivered, one of that size to another device, took
        part.
        """

    @abstractmethod
    def sum_to_server(self, values: NDArray[Any]) -> NDArray[Any] | None:
        """Return the element-wise sum over the ranks at the server; None elsewhere."""

    @abstractmethod
    def collect(self, values: NDArray[Any]) -> NDArray[Any] | None:
        """Return every rank's values at the server, shape (ranks, *shape); None elsewhere.

        Zeros for a rank that is dead.
        """

    def max_to_server(self, value: float) -> float | None:
        """Return the maximum over the ranks of a value of at least 0, at the server; else None."""
        found = self.collect(np.array([value], float))
        return None if found is None else float(found.max())

    def compare_clocks(self) -> None:  # noqa: B027 - one process has one clock
        """Find out anew by how much this rank's clock is off; all ranks call this, untimed."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def wait_for_all(self) -> None:
        """Wait for all ranks without taking time from those at work; never in a timed region."""
