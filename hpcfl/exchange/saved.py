"""The state of a client as sealed bytes, for frameworks that end its process after every message.

A party names the attributes that it keeps between two messages in its class (`kept`). Of a state,
the fields that no later step needs are left out. The bytes are MessagePack, encrypted by AES-GCM
under a key of the node. They say nothing about whether a later state exists: see
:mod:`hpcfl.exchange.journal`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from typing import Any

import msgpack
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hpcfl.algorithms.aggregation.quantised import DeviceState
from hpcfl.algorithms.aggregation.sharing import Challenge
from hpcfl.algorithms.aggregation.topology import Neighbourhood, Request
from hpcfl.crypto.keys import KeyPair
from hpcfl.errors import UsageError
from hpcfl.values import fields

Plain = Mapping[str, Any]
# What the bytes begin with; another format has another number.
FORMAT = b"hpcfl client 1\n"
_NONCE_BYTES = 12
_ARRAY, _SET, _VALUE = range(3)
_VALUES = {kind.__name__: kind for kind in (Challenge, KeyPair, Neighbourhood, Request)}


def kept(party: Any, behind: Set[str] = frozenset()) -> Plain:
    """Return what a party keeps, given the names of the steps that lie behind it."""
    found = {name: vars(party)[name] for name in getattr(party, "kept", ()) if name in vars(party)}
    for name, value in found.items():
        if isinstance(value, DeviceState):
            found[name] = {
                one.name: getattr(value, one.name)
                for one in fields(value)
                if one.metadata.get("until") not in behind
            }
    return found


def give_back(party: Any, found: Plain) -> None:
    """Let a new party go on with what another one kept."""
    for name, value in found.items():
        state = vars(party).get(name)
        if isinstance(state, DeviceState):
            vars(state).update(value)
        else:
            setattr(party, name, value)


def seal(state: Plain, key: bytes) -> bytes:
    """Return a state under a key of 16 or 32 bytes."""
    nonce = os.urandom(_NONCE_BYTES)
    raw = msgpack.packb(state, default=_plain, strict_types=False)
    return FORMAT + nonce + AESGCM(key).encrypt(nonce, raw, FORMAT)


def unseal(sealed: bytes, key: bytes) -> dict[str, Any]:
    """Return a sealed state; UsageError if the bytes are not one, or the key is another."""
    head, rest = sealed[: len(FORMAT)], sealed[len(FORMAT) :]
    try:
        if head != FORMAT:
            raise ValueError
        raw = AESGCM(key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], FORMAT)
    except (InvalidTag, ValueError):
        raise UsageError(
            "the saved state of a client does not open: it is damaged, of another version of "
            "hpcfl, or sealed under another key"
        ) from None
    found: dict[str, Any] = msgpack.unpackb(raw, ext_hook=_value, strict_map_key=False)
    return found


def _plain(value: Any) -> msgpack.ExtType:
    if isinstance(value, np.ndarray):
        about = [value.dtype.str, value.shape, value.tobytes()]
        return msgpack.ExtType(_ARRAY, msgpack.packb(about))
    if isinstance(value, set):
        return msgpack.ExtType(_SET, msgpack.packb(sorted(value)))
    if type(value) in _VALUES.values():
        about = [type(value).__name__, vars(value)]
        return msgpack.ExtType(_VALUE, msgpack.packb(about, default=_plain))
    raise UsageError(f"cannot save a {type(value).__name__}, which a party keeps")


def _value(code: int, raw: bytes) -> Any:
    about = msgpack.unpackb(raw, ext_hook=_value, strict_map_key=False)
    if code == _SET:
        return {*about}
    if code == _VALUE:
        name, values = about
        return _VALUES[name](**values)
    dtype, shape, data = about
    return np.frombuffer(data, dtype).reshape(shape).copy()
