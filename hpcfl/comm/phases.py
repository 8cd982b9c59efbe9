"""The shape of a protocol: its steps, and the interface of the two parties that play them.

A protocol is a sequence of steps. A step moves messages in one pattern; one or two steps make a
phase, the unit that is measured. The two parties are plain objects that turn received messages into
messages to send. They know no transport, no clock and no file, so the same objects run under MPI,
in one process, and under fault injection.

The driver (:mod:`hpcfl.comm.round`) calls them by name. In a phase called ``unmask``, a device's
``send_unmask`` and the server's ``receive_unmask`` make the gather, the server's ``send_unmask``
and a device's ``receive_unmask`` the broadcast:

=========  ==============================  ==================================
pattern    sender                          receiver
=========  ==============================  ==================================
BROADCAST  ``server.send_X()``             ``device.receive_X(payload)``
SCATTER    ``server.send_X(id)``           ``device.receive_X(payload)``
GATHER     ``device.send_X()``             ``server.receive_X(id, payload)``
ROUTE      ``device.send_X()``             ``device.receive_X(senders, rows)``
LOCAL      ..                              ``server.finish_X()``
=========  ==============================  ==================================

Where the server has nothing for a device, its ``send_X(id)`` of a scatter returns None.
The device's ``send_X`` of an upload step takes the device's vector. After a gather, the server's
``finish_X()`` is called if there is one; in a route ``receive_X(ids)`` tells it who took part.

The server's ``receive_X`` raises `MessageError` for a message that it cannot use, and is then as if
none had come: the sender is out of the round, which goes on. Whom it finds out only later it puts
into a dict ``refused`` of its own, if it has one. A device's method that raises `MessageError` or
`RefusedError` takes the device out of the round; if it has an attribute ``disowns_upload`` that is
true, no sum with its vector can be right any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Payload = NDArray[np.uint8]
Rows = NDArray[np.uint8]
Ids = NDArray[np.int64]

# Stands for the sender of a row that cannot be attributed.
NOBODY = -1


class Pattern(Enum):
    """Who sends to whom in a step."""

    BROADCAST = "the server to every live device, one message for all"
    SCATTER = "the server to every live device, one message each"
    GATHER = "every live device to the server"
    ROUTE = "every live device to others, one row each, all rows of the same size"
    LOCAL = "nobody: the server works alone"


@dataclass(frozen=True)
class Step:
    """One exchange of messages.

    Attributes
    ----------
    phase : str
        Name of the phase that the step belongs to.
    pattern : Pattern
        Who sends to whom.
    upload : bool
        Whether the devices' vectors enter here.
    """

    phase: str
    pattern: Pattern
    upload: bool = False


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


class Server(Protocol):
    """The server's side of one round. Further methods are called by name, as the steps say."""

    @property
    def survivors(self) -> list[int]:
        """The devices whose vectors are in the sum, in increasing order."""

    @property
    def total(self) -> NDArray[Any]:
        """The sum of the contributions, in the units of :meth:`Device.contribution`."""


def phase_names(steps: tuple[Step, ...]) -> list[str]:
    """Return the names of the phases, each once, in order."""
    return list(dict.fromkeys(step.phase for step in steps))
