"""The structure of a protocol: its steps, which name the methods of the parties.

A protocol is a sequence of steps. A step moves messages in one pattern; one or two steps form a
phase, the unit of measurement. The parties are plain objects that turn received messages into
messages to send. They use no transport, clock or file, so the same objects run under MPI, in one
process, and under fault injection.

A step names the method that makes a message and the method that takes it. If a subclass overrides
such a method, its version is used (`call`).

=========  ============================  ===================================
pattern    ``send``                      ``receive``
=========  ============================  ===================================
BROADCAST  of the server: ``()``         of a device: ``(payload)``
SCATTER    of the server: ``(id)``       of a device: ``(payload)``
GATHER     of a device: ``()``           of the server: ``(id, payload)``
ROUTE      of a device: ``()``           of a device: ``(senders, rows)``
LOCAL      ..                            ..
=========  ============================  ===================================

In a step with the role `Role.HELPER`, helpers take the place of devices. They have ids from N on,
and each has its own rank. They take part in broadcasts and gathers. In a step with the role
`Role.COMMITTEE`, the devices are the members of the committee, which the protocol chooses in each
round: ``in_committee`` is true for them, and the server's ``committee`` lists them in order.

In a scatter the server's ``send(id)`` returns None if it has no message for the device. In an
upload ``send`` takes the device's vector. If a step names ``finish``, the server's method is called
after a gather and in a local step. In a route the server's ``relay(ids)`` gets the devices that
took part. A step with ``wants`` is played only if that method of the server returns true.

A route is an exchange: a device receives rows from the devices that it sends to. The transport
knows the true sender of a row. A device that sent at least one row took part, and all devices that
it was linked with learn that: ``senders`` are exactly the devices, in increasing order, to which
this device sent and which took part. A row that is missing, or has the wrong step, round or pair of
devices, arrives as zeros. If a sender sent several rows, the first one counts; rows from unexpected
senders are dropped. So a row can mislead a device only about the row's own sender.

A route *to* a committee goes one way: devices send rows to the members, and each member receives
rows from all other devices that took part.

The server's ``receive`` raises `MessageError` for an unusable message and must then ignore it: the
sender leaves the round, and the round continues. Senders whose fault shows only later belong in the
server's dict ``refused``, if it has one. A device leaves the round if one of its methods raises
`MessageError` or `RefusedError`.

After the round the server's ``survivors`` are the devices whose vectors are in the sum, in
increasing order. Its ``total`` is that sum, in the units of :meth:`Device.contribution`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.scratch import reused
from hpcfl.errors import UsageError
from hpcfl.values import dataclass

# The size of the envelope in front of every message (see `hpcfl.comm.envelope`).
ENVELOPE_BYTES = 16

Payload = NDArray[np.uint8]
Rows = NDArray[np.uint8]
Ids = NDArray[np.int64]
# The coordinates of a vector that a device contributes to.
Where = NDArray[np.int64] | slice
# A method of a class of parties, as in ``SecAggDevice.send_unmask``.
Method = Callable[..., Any]


class Roomy(np.ndarray[Any, Any]):
    """A payload with room for its envelope in front, so that it can be sealed without a copy."""


def room(size: int) -> Payload:
    """Return uninitialised memory for a long payload of one message: shape (size,)."""
    return reused(ENVELOPE_BYTES + size)[ENVELOPE_BYTES:].view(Roomy)


class Pattern(Enum):
    """The senders and receivers of a step's messages."""

    BROADCAST = "the server to every live device, one message for all"
    SCATTER = "the server to every live device, one message each"
    GATHER = "every live device to the server"
    ROUTE = "every live device to others, one row each, all rows of the same size"
    LOCAL = "nobody: the server works alone"


BROADCAST, SCATTER, GATHER, ROUTE, LOCAL = Pattern


class Role(Enum):
    """The parties that exchange messages with the server, or with each other, in a step."""

    DEVICE = "devices"
    HELPER = "helpers"
    COMMITTEE = "members of the committee"


@dataclass(frozen=True)
class Step:
    """One exchange of messages, and the methods that play it."""

    phase: str  # the phase that the step belongs to
    pattern: Pattern
    send: Method | None = None
    receive: Method | None = None
    role: Role = Role.DEVICE
    to: Role = Role.DEVICE  # receivers of the rows of a route
    upload: bool = False  # whether the devices' vectors enter here
    row_bytes: int = 0  # size of a row's payload in a route
    finish: Method | None = None  # server method, called when all messages have arrived
    wants: Method | None = None  # server method that returns whether to play the step
    # Whether the messages of a gather may come together with those of the devices' step before, as
    # far as the steps in between are optional or only of the committee (see `hpcfl.exchange`).
    early: bool = False
    relay: Method | None = None  # server method that takes the ids of a route's participants
    # Server method for uploads: takes a part of a long payload as ``(id, part, start, size)``, with
    # the payload's total size. It may raise MessageError for the first part only.
    receive_part: Method | None = None
    receive_sum: Method | None = None  # takes ``(ids, total)``, summed by the transport
    # Whether all ranks of a server take part in a local step; see `aggregation.ranges`.
    by_all_ranks: bool = False

    def __post_init__(self) -> None:
        if self.pattern is not Pattern.LOCAL and not (self.send and self.receive):
            raise UsageError(
                f"a step of the phase {self.phase!r} lacks methods: give send and receive, as in "
                "Step(phase, Pattern.GATHER, MyDevice.send_it, MyServer.receive_it)"
            )

    @property
    def name(self) -> str:
        """The name of the step's messages: the sending method's name without ``send_``."""
        method = self.send or self.finish
        return self.phase if method is None else method.__name__.partition("_")[2]


def call(method: Method | None, party: Any, *arguments: Any) -> Any:
    """Call the party's version of a method that a step names."""
    assert method is not None, "the step names no such method"
    return getattr(party, method.__name__)(*arguments)


class Device(Protocol):
    """A device's side of one round, besides the methods that steps name."""

    id: int

    def contribution(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[Any]]:
        """Return the coordinates and values that the device added to the sum, for validation only.

        `vector` is the uploaded vector, made again. Devices do not keep it, because a rank may hold
        thousands of devices.
        """


def ends_with_messages(steps: Sequence[Step]) -> bool:
    """Return whether the last messages of a round go to clients, which answer none."""
    last = next((step.pattern for step in reversed(steps) if step.pattern is not LOCAL), LOCAL)
    return last in (BROADCAST, SCATTER)


def phase_names(steps: tuple[Step, ...]) -> list[str]:
    """Return the names of the phases, each once, in order."""
    return list(dict.fromkeys(step.phase for step in steps))
