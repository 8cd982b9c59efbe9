"""How protocols parse their messages, and refuse malformed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.phases import Payload
from hpcfl.crypto import keys
from hpcfl.errors import MessageError

SERVER = "the server"
Flags = NDArray[np.bool_]


def parse_vector(
    payload: Payload, dtype: str, length: int, phase: str, sender: str = SERVER
) -> NDArray[Any]:
    """Return `payload` as a vector of `length` numbers; MessageError if its size differs."""
    expected = np.dtype(dtype).itemsize * length
    if payload.size != expected:
        raise MessageError(phase, sender, f"received {payload.size} bytes, expected {expected}")
    return payload.view(dtype)


def from_server(phase: str, reason: str) -> MessageError:
    """Return the error for a malformed message from the server."""
    return MessageError(phase, SERVER, reason)


def check_public_keys(advertised: bytes, owners: str | Sequence[int]) -> None:
    """Refuse concatenated public keys if any of them cannot be used for a key agreement.

    The error is one of the sender `owners`, or of the device among the `owners`, which have as many
    keys each, that the first such key belongs to.
    """
    found = keys.unusable(advertised)
    if found is not None:
        place, reason = found
        if not isinstance(owners, str):
            each = len(advertised) // keys.KEY_BYTES // len(owners)
            owners = f"device {owners[place // each]}"
        raise MessageError("advertise_keys", owners, reason)


def to_flags(ids: Iterable[int], count: int) -> Flags:
    """Return a set of ids below `count` as an ndarray of bool, shape (count,)."""
    flags = np.zeros(count, np.bool_)
    flags[list(ids)] = True
    return flags


def bits(ids: Iterable[int], count: int) -> Payload:
    """Return a set of ids below `count` as a bitmap, most significant bit of a byte first."""
    return np.packbits(to_flags(ids, count))


def from_bits(bitmap: Payload) -> list[int]:
    """Return the indices of the bits that are set."""
    return np.flatnonzero(np.unpackbits(bitmap)).tolist()


def split_bits(payload: Payload, count: int, phase: str) -> tuple[list[int], Payload]:
    """Return the devices in the bitmap at the start of a message, and the rest of the message."""
    size = -(-count // 8)
    if payload.size < size:
        raise from_server(phase, f"{payload.size} bytes hold no list of devices")
    return read_bits(payload[:size], count, phase), payload[size:]


def read_bits(
    bitmap: Payload, count: int, phase: str, sender: str = SERVER, party: str = "device"
) -> list[int]:
    """Return which of `count` parties a bitmap names; MessageError if it names others."""
    named = from_bits(parse_vector(bitmap, "u1", -(-count // 8), phase, sender))
    if named and named[-1] >= count:
        raise MessageError(phase, sender, f"it names a {party} beyond the last, {count - 1}")
    return named
