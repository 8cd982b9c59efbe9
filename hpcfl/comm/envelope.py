"""The 16 bytes in front of every message: its step, round, sender and receiver.

======  ====  ===========================================
offset  size  field (little-endian)
======  ====  ===========================================
0       1     version of the format, 1
1       1     index of the step in the protocol
2       2     zero
4       4     round
8       4     sender: a device's id, `HELPERS` + k, or `SERVER`
12      4     receiver: the same, or `ALL`
======  ====  ===========================================

A device that refuses to continue sends a message with the step `REFUSAL` instead of its next one.
The payload is the reason, in UTF-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.phases import ENVELOPE_BYTES, Ids, Payload, Roomy, Rows
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
BYTES = ENVELOPE_BYTES
VERSION = 1
# Long payloads move in parts whose size is a multiple of this one. It holds a whole number of pairs
# of values for every number of bits.
PART_UNIT = 840
SERVER = 2**32 - 1
ALL = 2**32 - 2
# The first helper's number, above all possible device ids.
HELPERS = 2**31
# The step of a device's last message before it leaves the round.
REFUSAL = 255
REASON_BYTES = 240


def seal(step: int, round_index: int, sender: int, receiver: int, payload: Payload) -> Payload:
    """Return the message that carries `payload`, any contiguous array, behind its envelope.

    The whole array that `phases.room` returned is sealed in place, without a copy, and only once.
    """
    body = payload.reshape(-1).view(np.uint8)
    message = _with_room(body)
    if message is None:
        message = np.empty(BYTES + body.size, np.uint8)
        message[BYTES:] = body
    message[:BYTES].view(FORMAT)[0] = (VERSION, step, 0, round_index, sender, receiver)
    return message


def _with_room(body: Payload) -> Payload | None:
    """Return a payload with the room in front of it, or None if it has no such room."""
    if not isinstance(body, Roomy):
        return None
    whole: Any = body
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return whole if whole.size == BYTES + body.size else None


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
    """Return the payload of a message; raise MessageError if its envelope is not as expected."""
    who = party(sender)
    if message.size < BYTES:
        raise MessageError(phase, who, f"{message.size} bytes hold no envelope")
    header = message[:BYTES].view(FORMAT)[0]
    expected = (VERSION, step, 0, round_index, sender, receiver)
    for name, got, want in zip(FORMAT.names or (), header.tolist(), expected, strict=True):
        if got != want:
            raise MessageError(phase, who, f"its {name} is {got}, expected {want}")
    return message[BYTES:]


def unseal_rows(rows: Rows, step: int, round_index: int, senders: Ids, receiver: int | Ids) -> Rows:
    """Return the payloads, shape (k, size), of one row from each sender to its receiver.

    A row with an unexpected envelope becomes zeros. If there are no such rows, nothing is copied.
    """
    headers = read_headers(rows)
    right = (
        (headers["version"] == VERSION)
        & (headers["step"] == step)
        & (headers["reserved"] == 0)
        & (headers["round"] == round_index)
        & (headers["sender"] == senders)
        & (headers["receiver"] == receiver)
    )
    if right.all():
        return rows[:, BYTES:]
    # Selecting byte by byte (np.where) takes ten times as long as a copy.
    payloads = rows[:, BYTES:].copy()
    payloads[~right] = 0
    return payloads


def seal_refusal(reason: str, round_index: int, sender: int) -> Payload:
    """Return the message that tells the server why a device does not continue."""
    text = np.frombuffer(reason.encode()[:REASON_BYTES], np.uint8)
    return seal(REFUSAL, round_index, sender, SERVER, text)


def refusal_in(message: Payload, round_index: int, sender: int) -> str | None:
    """Return the reason in a refusal, as printable text; None if the message is not a refusal."""
    if message.size < BYTES:
        return None
    header = message[:BYTES].view(FORMAT)[0].tolist()
    if header != (VERSION, REFUSAL, 0, round_index, sender, SERVER):
        return None
    text = message[BYTES : BYTES + REASON_BYTES].tobytes().decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text) or "it gives no reason"


def read_headers(rows: Rows) -> NDArray[np.void]:
    """Return the envelopes of `rows`, shape (k, at least BYTES), as a structured array."""
    return np.ascontiguousarray(rows[:, :BYTES]).view(FORMAT).reshape(-1)


def party(sender: int) -> str:
    """Return the name of a sender in error messages."""
    if sender == SERVER:
        return "the server"
    return f"device {sender}" if sender < HELPERS else f"helper {sender - HELPERS}"
