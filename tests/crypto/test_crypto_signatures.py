"""Signatures are those of RFC 8032, tags those of RFC 2104, and neither is good for another use."""

import hmac

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


def test_what_was_not_signed_is_told_apart():
    key, other = (SigningKey.generate(insecure_secrets(seed, 0, 0)) for seed in (1, 2))
    p, s, c, m = key.public, key.sign(b"use", b"message"), b"use", b"message"

    assert is_signed(p, s, c, m)
    falsified = s[:-1] + bytes([s[-1] ^ 1])
    for wrong in ((other.public, s, c, m), (p, falsified, c, m), (p, b"", c, m), (p[:-1], s, c, m)):
        assert not is_signed(*wrong)
    for context, message in ((b"another use", m), (c, m + b"!"), (c + m[:1], m[1:])):
        assert not is_signed(p, s, context, message)


def test_a_tag_is_half_an_hmac_and_good_for_one_key_use_and_message():
    key = bytes(range(32))
    found = tag(key, b"use", b"message")

    assert hmac.digest(key, b"\x03\0\0\0usemessage", "sha256")[:16] == found
    assert is_tagged(key, found, b"use", b"message")
    for context, message in ((b"us", b"emessage"), (b"use", b"messag")):
        assert not is_tagged(key, found, context, message)
    for other, wrong in ((bytes(32), found), (key, found[:-1]), (key, b"")):
        assert not is_tagged(other, wrong, b"use", b"message")


@given(st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9))
def test_framing_is_unambiguous(a, b, c, d):
    assert (framed(a, b) == framed(c, d)) == ((a, b) == (c, d))
