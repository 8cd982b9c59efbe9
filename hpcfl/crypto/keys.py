"""Key agreement (X25519, RFC 7748), key derivation (HKDF-SHA256, RFC 5869), and their secrets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hpcfl.crypto import keystream

KEY_BYTES = 32
_SHA256 = SHA256()

SecretSource = Callable[[int], bytes]
"""Returns as many secret random bytes as it is asked for."""

system_secrets: SecretSource = os.urandom


def insecure_secrets(seed: int, round_index: int, device: int) -> SecretSource:
    """Return a source that repeats itself for the same arguments: for tests, never for secrets."""
    context = f"hpcfl/1 insecure round {round_index} device {device}".encode()
    stream = keystream.open_stream(derive(seed.to_bytes(16, "little", signed=True), context))
    return lambda count: stream.update(bytes(count))


@dataclass(frozen=True)
class KeyPair:
    """A key pair on Curve25519; `private` and `public` are the 32-byte strings of RFC 7748."""

    private: bytes
    public: bytes

    @classmethod
    def generate(cls, secrets: SecretSource) -> KeyPair:
        """Return a fresh pair whose private key comes from `secrets`."""
        return cls.from_private(secrets(KEY_BYTES))

    @classmethod
    def from_private(cls, private: bytes) -> KeyPair:
        """Return the pair that belongs to a private key."""
        key = X25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


def agree(private: bytes, public: list[bytes]) -> list[bytes]:
    """Return the secret shared with the owner of each public key.

    Raises
    ------
    ValueError
        If a public key is a point of low order, with which every secret would be zero.
    """
    key = X25519PrivateKey.from_private_bytes(private)
    return [key.exchange(X25519PublicKey.from_public_bytes(peer)) for peer in public]


def derive(secret: bytes, context: bytes, length: int = keystream.KEY_BYTES) -> bytes:
    """Return the key that `secret` gives for one use, named by `context` (HKDF without salt)."""
    return HKDF(_SHA256, length, None, context).derive(secret)
