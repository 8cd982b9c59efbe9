"""Who said it: signatures (Ed25519, RFC 8032), and tags of pairs (HMAC-SHA256, RFC 2104)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hpcfl.crypto.keys import SecretSource

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
        """Return the signature of a message, for one use that `context` names: 64 bytes."""
        return self._private.sign(framed(context, message))


def is_signed(public: bytes, signature: bytes, context: bytes, message: bytes) -> bool:
    """Return whether the owner of a public key signed the message in this context."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, framed(context, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def tag(key: bytes, context: bytes, message: bytes) -> bytes:
    """Return the tag of a message, for one use that `context` names: 16 bytes.

    Only who has the key can make it or check it, so two parties who share one know of each other
    what they say; a third learns nothing from it.
    """
    return hmac.digest(key, framed(context, message), "sha256")[:TAG_BYTES]


def is_tagged(key: bytes, found: bytes, context: bytes, message: bytes) -> bool:
    """Return whether `found` is the tag, in a time that does not depend on where it differs."""
    return hmac.compare_digest(found, tag(key, context, message))


def framed(context: bytes, message: bytes) -> bytes:
    """Return both in one string: no other context and message give the same."""
    return len(context).to_bytes(4, "little") + context + message
