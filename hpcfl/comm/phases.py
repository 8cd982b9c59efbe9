"""The shape of a protocol: its steps, which name the methods of the parties that play them.

A protocol is a sequence of steps. A step moves messages in one pattern; one or two steps make a
phase, the unit that is measured. The parties are plain objects that turn received messages into
messages to send. They know no transport, no clock and no file, so the same objects run under MPI,
in one process, and under fault injection.

A step names the method that makes a message and the one that takes it. A party that overrides a
method plays its own version (`call`).

=========  ============================  ===================================
pattern    ``send``                      ``receive``
=========  ============================  ===================================
BROADCAST  of the server: ``()``         of a device: ``(payload)``
SCATTER    of the server: ``(id)``       of a device: ``(payload)``
GATHER     of a device: ``()``           of the server: ``(id, payload)``
ROUTE      of a device: ``()``           of a device: ``(senders, rows)``
LOCAL      ..                            ..
=========  ============================  ===================================

In a step whose role is `Role.HELPER`, helpers stand in the place of devices: parties with ids from
N on, if the protocol has any, each on a rank of its own. They take part in broadcasts and gathers.
In one whose role is `Role.COMMITTEE`, it is the devices whose ``in_committee`` is true: some that a
protocol chooses in each round, which the server's ``committee`` lists in increasing order.

Where the server has nothing for a device, its ``send(id)`` of a scatter returns None. The ``send``
of an upload takes the device's vector. After a gather, and in a local step, the server's ``finish``
is called, if the step names one; in a route its ``relay(ids)`` learns who took part. A step with
``wants`` is played where that method of the server returns true.

A route is an exchange: a device hears from those that it sends to. The transport knows who sent a
row, whatever the row says. A device that sent any row took part, and everybody it was linked with
learns that: ``senders`` are exactly those, in increasing order, to whom this device sent and who
took part. A row that did not come, or is not of this step, round and pair, comes as zeros: it is
its sender's, and holds nothing. Of several rows of a sender the first counts, and a row from
somebody else is dropped. So a row makes no device believe anything of others than its sender.

A route *to* a committee goes one way: devices send rows to its members, and each of these hears
from all other devices that took part.

The server's ``receive`` raises `MessageError` for a message that it cannot use, and is then as if
none had come: the sender is out of the round, which goes on. Whom it finds out only later it puts
into a dict ``refused`` of its own, if it has one. A device's method that raises `MessageError` or
`RefusedError` takes the device out of the round.

After the round the server's ``survivors`` are the devices whose vectors are in the sum, in
increasing order, and its ``total`` is that sum, in the units of :meth:`Device.contribution`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError

# What every message has in front of it on the wire (see `hpcfl.comm.envelope`).
ENVELOPE_BYTES = 16

Payload = NDArray[np.uint8]
Rows = NDArray[np.uint8]
Ids = NDArray[np.int64]
# Some coordinates of a vector, or all of them.
Where = NDArray[np.int64] | slice
# A method of a class of parties, as in ``SecAggDevice.send_unmask``.
Method = Callable[..., Any]


class Roomy(np.ndarray[Any, Any]):
    """A payload with room for its envelope in front of it, so that it is sealed without a copy."""


def room(size: int) -> Payload:
    """Return memory for a long payload of one message, with anything in it: shape (size,)."""
    return np.empty(ENVELOPE_BYTES + size, np.uint8)[ENVELOPE_BYTES:].view(Roomy)


class Pattern(Enum):
    """Who sends to whom in a step."""

    BROADCAST = "the server to every live device, one message for all"
    SCATTER = "the server to every live device, one message each"
    GATHER = "every live device to the server"
    ROUTE = "every live device to others, one row each, all rows of the same size"
    LOCAL = "nobody: the server works alone"


BROADCAST, SCATTER, GATHER, ROUTE, LOCAL = Pattern


class Role(Enum):
    """Who exchanges messages with the server in a step, or with each other."""

    DEVICE = "devices"
    HELPER = "helpers"
    COMMITTEE = "members of the committee"


@dataclass(frozen=True)
class Step:
    """One exchange of messages, and the methods that play it."""

    phase: str  # that the step belongs to
    pattern: Pattern
    send: Method | None = None
    receive: Method | None = None
    role: Role = Role.DEVICE
    to: Role = Role.DEVICE  # who receives the rows of a route
    upload: bool = False  # whether the devices' vectors enter here
    row_bytes: int = 0  # of a row of a route
    finish: Method | None = None  # of the server, when all messages are there
    wants: Method | None = None  # of the server, which it returns whether to play the step
    relay: Method | None = None  # of the server, which is told who took part in a route
    # Of the server, for uploads: takes the bytes of a long payload from `start` on, of `size` in
    # all, as ``(id, part, start, size)``. A MessageError must come with the first part, if at all.
    receive_part: Method | None = None
    receive_sum: Method | None = None  # takes ``(ids, total)``, which was summed on the way
    # Of a local step, whether all ranks of a server take part; see `aggregation.ranges`.
    by_all_ranks: bool = False

    def __post_init__(self) -> None:
        if self.pattern is not Pattern.LOCAL and not (self.send and self.receive):
            raise UsageError(
                f"a step of the phase {self.phase!r} lacks methods: give send and receive, as in "
                "Step(phase, Pattern.GATHER, MyDevice.send_it, MyServer.receive_it)"
            )

    @property
    def name(self) -> str:
        """What the step's messages are called: as the method that makes them, less ``send_``."""
        method = self.send or self.finish
        return self.phase if method is None else method.__name__.partition("_")[2]


def call(method: Method | None, party: Any, *arguments: Any) -> Any:
    """Call a method that a step names: the party's own version of it."""
    assert method is not None, "the step names no such method"
    return getattr(party, method.__name__)(*arguments)


class Device(Protocol):
    """A device's side of one round, besides the methods that steps name."""

    id: int

    def contribution(self, vector: NDArray[np.floating]) -> tuple[Where, NDArray[Any]]:
        """Return where and what the device added to the sum, for validation only.

        `vector` is the one that it uploaded, made again: a device that kept it would take as much
        memory as the vector, for each of the thousands of devices on a rank.
        """


def phase_names(steps: tuple[Step, ...]) -> list[str]:
    """Return the names of the phases, each once, in order."""
    return list(dict.fromkeys(step.phase for step in steps))
