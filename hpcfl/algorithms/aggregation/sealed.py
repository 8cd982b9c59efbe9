"""Rows that devices send each other through the server, encrypted by AES-GCM.

A key serves one pair of devices in one round, and seals one row in either direction.
"""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hpcfl.comm.phases import Payload
from hpcfl.errors import MessageError

TAG_BYTES = 16

# The nonce and the associated data of a row.
Labels = tuple[bytes, bytes]


def labels(protocol: str, round_index: int, sender: int, receiver: int) -> Labels:
    """Return the nonce and associated data of a row from one device to another."""
    nonce = sender.to_bytes(4, "little") + receiver.to_bytes(4, "little") + bytes(4)
    return nonce, f"hpcfl/1 {protocol} round {round_index} from {sender} to {receiver}".encode()


def seal(key: bytes, labels: Labels, content: Payload, row: Payload) -> None:
    """Write sealed content to a row, which is `TAG_BYTES` longer; both are contiguous."""
    nonce, associated = labels
    AESGCM(key).encrypt_into(nonce, content.data, associated, row.data)


def unseal(key: bytes, labels: Labels, row: Payload, phase: str, sender: int) -> Payload:
    """Return the content of a row; MessageError if its authentication fails."""
    nonce, associated = labels
    try:
        content = AESGCM(key).decrypt(nonce, row.tobytes(), associated)
    except (InvalidTag, ValueError):
        raise MessageError(phase, f"device {sender}", "it does not decrypt") from None
    return np.frombuffer(content, np.uint8)
