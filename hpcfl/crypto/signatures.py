"""Authentication: signatures (Ed25519, RFC 8032), and pairwise tags (HMAC-SHA256, RFC 2104)."""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hpcfl.crypto.keys import SecretSource
from hpcfl.values import dataclass, field

PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
TAG_BYTES = 16
_SECRET_BYTES = 32


@dataclass(frozen=True)
class SigningKey:
    """A long-term signature key; `public` is the 32-byte string of RFC 8032."""

    public: bytes
    _private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, secrets: SecretSource) -> SigningKey:
        """Return a fresh key whose private half comes from `secrets`."""
        private = Ed25519PrivateKey.from_private_bytes(secrets(_SECRET_BYTES))
        return cls(private.public_key().public_bytes_raw(), private)

    def sign(self, context: bytes, message: bytes) -> bytes:
        """Return the 64-byte signature of a message for the use `context`."""
        return self._private.sign(framed(context, message))


def is_signed(public: bytes, signature: bytes, context: bytes, message: bytes) -> bool:
    """Return whether the owner of a public key signed the message in this context."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, framed(context, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def tag(key: bytes, context: bytes, message: bytes) -> bytes:
    """Return the 16-byte tag of a message for the use `context`.

    Only the holders of the key can make or check it. Two parties that share a key can therefore
    authenticate their messages to each other, but not to a third party.
    """
    return hmac.digest(key, framed(context, message), "sha256")[:TAG_BYTES]


def is_tagged(key: bytes, found: bytes, context: bytes, message: bytes) -> bool:
    """Return whether `found` is the tag, by a constant-time comparison."""
    return hmac.compare_digest(found, tag(key, context, message))


def framed(context: bytes, message: bytes) -> bytes:
    """Return an injective encoding: no other context and message give the same bytes."""
    return len(context).to_bytes(4, "little") + context + message
