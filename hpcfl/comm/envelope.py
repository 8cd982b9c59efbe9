"""The 16 bytes in front of every message: what it is, of which round, from whom, to whom.

======  ====  ===========================================
offset  size  field (little-endian)
======  ====  ===========================================
0       1     version of the format, 1
1       1     index of the step in the protocol
2       2     zero
4       4     round
8       4     sender: a device's id, or `SERVER`
12      4     receiver: a device's id, `SERVER`, or `ALL`
======  ====  ===========================================

A device that refuses to go on says so in a message of the step `REFUSAL` in place of its next one;
the payload is its reason, UTF-8. In the step `DISOWNED` it says as well that the others cannot have
masked with whom it has masked: its upload is of no use, and neither is a sum with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.phases import NOBODY, Ids, Payload, Rows
from hpcfl.errors import MessageError

FORMAT = np.dtype(
    [
        ("version", "u1"),
        ("step", "u1"),
        ("reserved", "<u2"),
        ("round", "<u4"),
        ("sender", "<u4"),
        ("receiver", "<u4"),
    ]
)
BYTES = FORMAT.itemsize
VERSION = 1
SERVER = 2**32 - 1
ALL = 2**32 - 2
# Stands for the step in a device's last message: it takes no further part in the round.
REFUSAL = 255
DISOWNED = 254
REASON_BYTES = 240


def seal(step: int, round_index: int, sender: int, receiver: int, payload: Payload) -> Payload:
    """Return the message that carries `payload`, any contiguous array, behind its envelope."""
    body = payload.reshape(-1).view(np.uint8)
    message = np.empty(BYTES + body.size, np.uint8)
    message[:BYTES].view(FORMAT)[0] = (VERSION, step, 0, round_index, sender, receiver)
    message[BYTES:] = body
    return message


def seal_rows(step: int, round_index: int, sender: int, receivers: Ids, rows: Rows) -> Rows:
    """Return `rows`, shape (k, size), each behind its envelope, shape (k, BYTES + size)."""
    sealed = np.empty((len(rows), BYTES + rows.shape[1]), np.uint8)
    header = np.zeros(len(rows), FORMAT)
    header["version"], header["step"], header["round"] = VERSION, step, round_index
    header["sender"], header["receiver"] = sender, receivers
    sealed[:, :BYTES] = header.view(np.uint8).reshape(len(rows), BYTES)
    sealed[:, BYTES:] = rows
    return sealed


def unseal(
    message: Payload, phase: str, step: int, round_index: int, sender: int, receiver: int
) -> Payload:
    """Return the payload of a message that must be the expected one.

    Raises
    ------
    MessageError
        If the message is shorter than an envelope, or its envelope says something else.
    """
    who = party(sender)
    if message.size < BYTES:
        raise MessageError(phase, who, f"{message.size} bytes hold no envelope")
    header = message[:BYTES].view(FORMAT)[0]
    expected = (VERSION, step, 0, round_index, sender, receiver)
    for name, got, want in zip(FORMAT.names or (), header.tolist(), expected, strict=True):
        if got != want:
            raise MessageError(phase, who, f"its {name} is {got}, expected {want}")
    return message[BYTES:]


def unseal_rows(
    rows: Rows, phase: str, step: int, round_index: int, receiver: int
) -> tuple[Ids, Rows]:
    """Return the senders and payloads of the rows that one device received, by sender.

    Rows whose envelope is not of this step, round and receiver come first, from `NOBODY`: what
    they say about their sender counts as little as the rest. A sender may have several rows.

    Raises
    ------
    MessageError
        If the rows are shorter than an envelope.
    """
    if rows.shape[1] < BYTES:
        raise MessageError(phase, "a device", f"rows of {rows.shape[1]} bytes hold no envelope")
    headers = read_headers(rows)
    wrong = (
        (headers["version"] != VERSION)
        | (headers["step"] != step)
        | (headers["reserved"] != 0)
        | (headers["round"] != round_index)
        | (headers["receiver"] != receiver)
    )
    senders = np.where(wrong, NOBODY, headers["sender"].astype(np.int64))
    order = np.argsort(senders, kind="stable")
    return senders[order], rows[order, BYTES:]


@dataclass(frozen=True)
class Refusal:
    """Why a device does not go on, and whether its upload is of no use."""

    reason: str
    disowns: bool

    def seal(self, round_index: int, sender: int) -> Payload:
        """Return the message in which a device says so to the server."""
        step = DISOWNED if self.disowns else REFUSAL
        reason = np.frombuffer(self.reason.encode()[:REASON_BYTES], np.uint8)
        return seal(step, round_index, sender, SERVER, reason)


def refusal_in(message: Payload, round_index: int, sender: int) -> Refusal | None:
    """Return the refusal that a message is, None if it is none.

    A reason is at most `REASON_BYTES` long and printable, whatever the device sent.
    """
    if message.size < BYTES:
        return None
    header = message[:BYTES].view(FORMAT)[0].tolist()
    for step in (REFUSAL, DISOWNED):
        if header == (VERSION, step, 0, round_index, sender, SERVER):
            text = message[BYTES : BYTES + REASON_BYTES].tobytes().decode(errors="replace")
            reason = "".join(c if c.isprintable() else "?" for c in text)
            return Refusal(reason or "it gives no reason", step == DISOWNED)
    return None


def read_headers(rows: Rows) -> NDArray[np.void]:
    """Return the envelopes of `rows`, shape (k, at least BYTES), as a structured array."""
    return np.ascontiguousarray(rows[:, :BYTES]).view(FORMAT).reshape(-1)


def party(sender: int) -> str:
    """Return how an error message calls a sender."""
    if sender == NOBODY:
        return "an unknown device"
    return "the server" if sender == SERVER else f"device {sender}"
