"""The shape of a protocol: its steps, and the interface of the two parties that play them.

A protocol is a sequence of steps. A step moves messages in one pattern; one or two steps make a
phase, the unit that is measured. The two parties are plain objects that turn received messages into
messages to send. They know no transport, no clock and no file, so the same objects run under MPI,
in one process, and under fault injection.

The driver (:mod:`hpcfl.rounds.driver`) calls them by the name X of the step, which is that of its
phase unless the step says otherwise. In a phase called ``unmask``, a device's ``send_unmask`` and
the server's ``receive_unmask`` make the gather, the server's ``send_unmask`` and a device's
``receive_unmask`` the broadcast:

=========  ==============================  ==================================
pattern    sender                          receiver
=========  ==============================  ==================================
BROADCAST  ``server.send_X()``             ``device.receive_X(payload)``
SCATTER    ``server.send_X(id)``           ``device.receive_X(payload)``
GATHER     ``device.send_X()``             ``server.receive_X(id, payload)``
ROUTE      ``device.send_X()``             ``device.receive_X(senders, rows)``
LOCAL      ..                              ``server.finish_X()``
=========  ==============================  ==================================

In a step whose role is `Role.HELPER`, helpers stand in the place of devices: parties with ids from
N on, if the protocol has any, each on a rank of its own. They take part in broadcasts and gathers.
In one whose role is `Role.COMMITTEE`, it is the devices whose ``in_committee`` is true: some that a
protocol chooses in each round, which the server's ``committee`` lists in increasing order.

Where the server has nothing for a device, its ``send_X(id)`` of a scatter returns None.
The device's ``send_X`` of an upload step takes the device's vector. After a gather, the server's
``finish_X()`` is called if there is one; in a route ``receive_X(ids)`` tells it who took part.
Steps that are optional are played where the server's ``wants_X()`` is true.

A route is an exchange: a device hears from those that it sends to. The transport knows who sent a
row, whatever the row says. A device that sent any row took part, and everybody it was linked with
learns that: ``senders`` are exactly those, in increasing order, to whom this device sent and who
took part. A row that did not come, or is not of this step, round and pair, comes as zeros: it is
its sender's, and holds nothing. Of several rows of a sender the first counts, and a row from
somebody else is dropped. So a row makes no device believe anything of others than its sender.

A route *to* a committee goes one way: devices send rows to its members, and each of these hears
from all other devices that took part.

The server's ``receive_X`` raises `MessageError` for a message that it cannot use, and is then as if
none had come: the sender is out of the round, which goes on. Whom it finds out only later it puts
into a dict ``refused`` of its own, if it has one. A device's method that raises `MessageError` or
`RefusedError` takes the device out of the round.

After the round the server's ``survivors`` are the devices whose vectors are in the sum, in
increasing order, and its ``total`` is that sum, in the units of :meth:`Device.contribution`.
"""

from __future__ import annotations

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


class Role(Enum):
    """Who exchanges messages with the server in a step, or with each other."""

    DEVICE = "devices"
    HELPER = "helpers"
    COMMITTEE = "members of the committee"


@dataclass(frozen=True)
class Step:
    """One exchange of messages."""

    phase: str  # that the step belongs to
    pattern: Pattern
    role: Role = Role.DEVICE
    to: Role = Role.DEVICE  # who receives the rows of a route
    upload: bool = False  # whether the devices' vectors enter here
    message: str = ""  # what the methods that play the step are called by; the phase, if empty
    row_bytes: int = 0  # of a row of a route
    optional: bool = False  # whether it is played only where the server wants it
    # Of a local step, whether all ranks of a server take part; see `aggregation.ranges`.
    by_all_ranks: bool = False

    def __post_init__(self) -> None:
        for word in (self.phase, self.name):
            if not word.isidentifier():
                raise UsageError(
                    f"a step is called {word!r}, and its methods send_{word} and receive_{word}: "
                    "give letters, digits and _"
                )

    @property
    def name(self) -> str:
        """The X of the methods ``send_X`` and ``receive_X``."""
        return self.message or self.phase


class Device(Protocol):
    """A device's side of one round. Further methods are called by name, as the steps say."""

    id: int

    def contribution(
        self, vector: NDArray[np.floating]
    ) -> tuple[NDArray[np.int64] | slice, NDArray[Any]]:
        """Return where and what the device added to the sum, for validation only.

        `vector` is the one that it uploaded, made again: a device that kept it would take as much
        memory as the vector, for each of the thousands of devices on a rank.
        """


def phase_names(steps: tuple[Step, ...]) -> list[str]:
    """Return the names of the phases, each once, in order."""
    return list(dict.fromkeys(step.phase for step in steps))
