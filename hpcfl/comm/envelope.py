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
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.phases import Ids, Payload, Rows
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

    Raises
    ------
    MessageError
        If a row is shorter than an envelope, an envelope is not of this step, round and receiver,
        or a sender appears twice.
    """
    if rows.shape[1] < BYTES:
        raise MessageError(phase, "a device", f"rows of {rows.shape[1]} bytes hold no envelope")
    headers = read_headers(rows)
    senders = headers["sender"].astype(np.int64)
    wrong = (
        (headers["version"] != VERSION)
        | (headers["step"] != step)
        | (headers["reserved"] != 0)
        | (headers["round"] != round_index)
        | (headers["receiver"] != receiver)
    )
    if wrong.any():
        sender = int(senders[wrong.argmax()])
        raise MessageError(phase, party(sender), "its envelope belongs to another message")
    order = np.argsort(senders, kind="stable")
    senders = senders[order]
    twice = np.flatnonzero(senders[1:] == senders[:-1])
    if twice.size:
        raise MessageError(phase, party(int(senders[twice[0]])), "it came twice")
    return senders, rows[order, BYTES:]


def read_headers(rows: Rows) -> NDArray[np.void]:
    """Return the envelopes of `rows`, shape (k, at least BYTES), as a structured array."""
    return np.ascontiguousarray(rows[:, :BYTES]).view(FORMAT).reshape(-1)


def party(sender: int) -> str:
    """Return how an error message calls a sender."""
    return "the server" if sender == SERVER else f"device {sender}"
