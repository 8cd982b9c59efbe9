"""Rows that devices send each other through the server, encrypted by AES-GCM.

A key serves one pair of devices in one round, and seals one row in either direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hpcfl.algorithms.aggregation.messages import Flags
from hpcfl.comm.phases import Rows

TAG_BYTES = 16
CLOSED = "it does not decrypt"  # why a row is refused

# The key, the nonce and the associated data of a row.
Seal = tuple[bytes, bytes, bytes]


def seals(keys: Iterable[bytes], context: str, pairs: Iterable[tuple[int, int]]) -> Iterator[Seal]:
    """Yield the seals of a round's rows; `pairs` are the sender and the receiver of each."""
    for key, (sender, receiver) in zip(keys, pairs, strict=True):
        nonce = sender.to_bytes(4, "little") + receiver.to_bytes(8, "little")
        yield key, nonce, f"{context} from {sender} to {receiver}".encode()


def seal(seals: Iterable[Seal], contents: Iterable[Any], rows: Rows) -> None:
    """Write sealed contents, uint8 of shape (n,), to rows of shape (k, n + `TAG_BYTES`)."""
    for (key, nonce, associated), content, row in zip(seals, contents, rows, strict=True):
        AESGCM(key).encrypt_into(nonce, content, associated, row)


def unseal(seals: Iterable[Seal], rows: Rows, contents: Rows) -> Flags:
    """Write the contents of rows, shape (k, n), and return which rows do not decrypt, shape (k,).

    The content of such a row is arbitrary, and must not be used.
    """
    closed = np.zeros(len(rows), np.bool_)
    each = enumerate(zip(seals, rows, contents, strict=True))
    for k, ((key, nonce, associated), row, content) in each:
        try:
            AESGCM(key).decrypt_into(nonce, row, associated, content)
        except (InvalidTag, ValueError):
            closed[k] = True
    return closed
