"""Key agreement (X25519, RFC 7748), key derivation (HKDF-SHA256, RFC 5869), secret sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hpcfl.crypto import keystream, native
from hpcfl.values import dataclass, field

KEY_BYTES = 32
FEWEST = 5  # keys that are worth a call of compiled code
# The field of Curve25519, and the u-coordinates of the points of small order on the curve and its
# twist. Key agreement with any of them gives zero, whatever the private key.
_PRIME = 2**255 - 19
_LOW_ORDER = frozenset(
    (
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _PRIME - 1,
    )
)
_LOWEST_WORDS = np.array([number % 2**64 for number in _LOW_ORDER], np.uint64)
_SHA256 = SHA256()
_ZERO = bytes(KEY_BYTES)

SecretSource = Callable[[int], bytes]
"""Returns as many secret random bytes as it is asked for."""

system_secrets: SecretSource = os.urandom


def insecure_stream(seed: int, owner: str) -> SecretSource:
    """Return a source that the arguments determine: for tests, never for real secrets."""
    key = derive(seed.to_bytes(16, "little", signed=True), f"hpcfl/1 insecure {owner}".encode())
    stream = keystream.open_stream(key)
    return lambda count: stream.update(bytes(count))


def insecure_secrets(seed: int, round_index: int, device: int) -> SecretSource:
    """Return the `insecure_stream` of a device in a round."""
    return insecure_stream(seed, f"round {round_index} device {device}")


def secrets_of(insecure_seed: int | None, round_index: int, device: int) -> SecretSource:
    """Return a device's source of secrets: the operating system, unless a seed is given."""
    if insecure_seed is None:
        return system_secrets
    return insecure_secrets(insecure_seed, round_index, device)


def helper_secrets(insecure_seed: int | None, round_index: int, number: int) -> SecretSource:
    """Return a helper's source of secrets, as the device -3 - `number` (-2 is the server)."""
    return secrets_of(insecure_seed, round_index, -3 - number)


@dataclass(frozen=True)
class KeyPair:
    """A key pair on Curve25519; `private` and `public` are the 32-byte strings of RFC 7748."""

    private: bytes = field(repr=False)
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


def agree(private: bytes, public: list[bytes]) -> list[bytes]:
    """Return the secret shared with each key's owner; raise ValueError for a low-order key."""
    library = native.lib25519()
    if library is None or not public:
        key = X25519PrivateKey.from_private_bytes(private)
        return [key.exchange(X25519PublicKey.from_public_bytes(peer)) for peer in public]
    secrets = cut(library.multiply(private, b"".join(public)))
    if _ZERO in secrets:
        raise ValueError("a public key has low order")
    return secrets


def agreed(
    private: bytes,
    public: Mapping[int, bytes],
    context: Callable[[int], bytes],
    length: int = keystream.KEY_BYTES,
) -> dict[int, bytes]:
    """Return the key in common with each party, by number, for the use that its context names."""
    secrets = agree(private, [*public.values()])
    derived = derive_each(secrets, [context(number) for number in public], length)
    return dict(zip(public, derived, strict=True))


def cut(listed: bytes, size: int = KEY_BYTES) -> list[bytes]:
    """Return the pieces of `size` bytes of a byte string."""
    return [listed[start : start + size] for start in range(0, len(listed), size)]


def unusable(listed: bytes) -> tuple[int, str] | None:
    """Return the place of the first of several public keys that belongs to no key pair, and why.

    A key must not have low order, and must have the canonical encoding of RFC 7748. Otherwise a
    second encoding of a device's key would pass as a different key.
    """
    words = np.frombuffer(listed, "<u8").reshape(-1, KEY_BYTES // 8)
    # Only of the few keys that have a word in common with an unusable one is the number computed.
    suspects = (words[:, :1] == _LOWEST_WORDS).any(axis=1) | (words[:, -1] >= _PRIME >> 192)
    for place in np.flatnonzero(suspects).tolist():
        number = int.from_bytes(listed[KEY_BYTES * place : KEY_BYTES * (place + 1)], "little")
        if number % 2**255 % _PRIME in _LOW_ORDER:
            return place, "a public key has low order"
        if number >= _PRIME:
            return place, "a public key is not a canonical point of Curve25519"
    return None


def derive(secret: bytes, context: bytes, length: int = keystream.KEY_BYTES) -> bytes:
    """Return the key derived from `secret` for the use `context` (HKDF without salt)."""
    return HKDF(_SHA256, length, None, context).derive(secret)


def derive_each(
    secrets: Sequence[bytes], contexts: Sequence[bytes], length: int = keystream.KEY_BYTES
) -> list[bytes]:
    """Return the key derived from each secret, all of one length, for the use of its context."""
    kernel = native.deriver()
    # For a few keys, a call of compiled code takes longer.
    if kernel is not None and len(secrets) >= FEWEST and length <= kernel.LONGEST:
        return cut(kernel.derive(secrets, contexts, length), length)
    return [derive(*one, length) for one in zip(secrets, contexts, strict=True)]
