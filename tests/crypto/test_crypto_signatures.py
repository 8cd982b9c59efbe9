"""Signatures are those of RFC 8032, tags those of RFC 2104, and neither is good for another use."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.crypto import signatures
from hpcfl.crypto.keys import insecure_secrets
from hpcfl.crypto.signatures import SigningKey, framed, is_signed, is_tagged, tag

# RFC 8032, section 7.1, test 1.
SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")


def test_a_signature_is_of_the_framed_message_with_the_key_of_the_rfc():
    key = SigningKey.generate(lambda count: SECRET[:count])
    expected = Ed25519PrivateKey.from_private_bytes(SECRET).sign(b"\x03\0\0\0usemessage")

    assert PUBLIC == key.public
    assert expected == key.sign(b"use", b"message")
    assert len(expected) == signatures.SIGNATURE_BYTES
    assert SECRET.hex() not in repr(key)
    assert repr(SECRET)[2:20] not in repr(key)


@pytest.mark.parametrize(
    "change",
    [
        lambda p, s, c, m: (SigningKey.generate(insecure_secrets(2, 0, 0)).public, s, c, m),
        lambda p, s, c, m: (p, s[:-1] + bytes([s[-1] ^ 1]), c, m),
        lambda p, s, c, m: (p, s, b"another use", m),
        lambda p, s, c, m: (p, s, c, m + b"!"),
        lambda p, s, c, m: (p, s, c + m[:1], m[1:]),
        lambda p, s, c, m: (p, s[:-1], c, m),
        lambda p, s, c, m: (p, b"", c, m),
        lambda p, s, c, m: (p[:-1], s, c, m),
        lambda p, s, c, m: (b"\xff" * 32, s, c, m),
    ],
)
def test_what_was_not_signed_is_told_apart(change):
    key = SigningKey.generate(insecure_secrets(1, 0, 0))
    right = (key.public, key.sign(b"use", b"message"), b"use", b"message")

    assert is_signed(*right)
    assert not is_signed(*change(*right))


def hmac_sha256(key, message):
    """HMAC, written from RFC 2104, for keys of at most a block."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in block) + message).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in block) + inner).digest()


def test_a_tag_is_half_an_hmac_and_good_for_one_key_use_and_message():
    key = bytes(range(32))
    found = tag(key, b"use", b"message")

    assert hmac_sha256(key, b"\x03\0\0\0usemessage")[:16] == found
    assert is_tagged(key, found, b"use", b"message")
    for wrong in [
        (bytes(32), found, b"use", b"message"),
        (key, found, b"us", b"emessage"),
        (key, found, b"use", b"messag"),
        (key, found[:-1], b"use", b"message"),
        (key, b"", b"use", b"message"),
    ]:
        assert not is_tagged(*wrong)


@given(st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9))
def test_framing_is_unambiguous(a, b, c, d):
    assert (framed(a, b) == framed(c, d)) == ((a, b) == (c, d))
