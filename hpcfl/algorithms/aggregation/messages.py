"""How protocols read what is in their messages, and refuse what cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.comm.phases import Payload
from hpcfl.crypto import keys
from hpcfl.errors import MessageError


def parse_vector(
    payload: Payload, dtype: str, length: int, phase: str, sender: str
) -> NDArray[Any]:
    """Return `payload` as a vector of exactly `length` numbers.

    Raises
    ------
    MessageError
        If it has another size.
    """
    expected = np.dtype(dtype).itemsize * length
    if payload.size != expected:
        raise MessageError(phase, sender, f"received {payload.size} bytes, expected {expected}")
    return payload.view(dtype)


def from_server(phase: str, reason: str) -> MessageError:
    """Return the error for a message of the server's."""
    return MessageError(phase, "the server", reason)


def check_public_keys(advertised: bytes, sender: str) -> None:
    """Refuse public keys, end to end, with which nothing can be agreed."""
    try:
        for start in range(0, len(advertised), keys.KEY_BYTES):
            keys.check_public(advertised[start : start + keys.KEY_BYTES])
    except ValueError as error:
        raise MessageError("advertise_keys", sender, str(error)) from None


def to_flags(ids: Iterable[int], devices: int) -> NDArray[np.bool_]:
    """Return a set of ids below `devices` as ndarray of bool, shape (devices,)."""
    flags = np.zeros(devices, np.bool_)
    flags[list(ids)] = True
    return flags


def from_bits(bitmap: Payload) -> list[int]:
    """Return the numbers of the bits that are set."""
    return np.flatnonzero(np.unpackbits(bitmap)).tolist()
