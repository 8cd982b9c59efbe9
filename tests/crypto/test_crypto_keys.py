"""Keys are those of RFC 7748 and RFC 5869, and private ones stay private."""

import base64
import hashlib
import hmac
import itertools
import os
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfl.crypto import keys

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")

P = 2**255 - 19
LOW_ORDER = {
    "zero": bytes(32),
    "one": (1).to_bytes(32, "little"),
    "order 8": bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    "order 8, the other": bytes.fromhex(
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"
    ),
    "p - 1": (P - 1).to_bytes(32, "little"),
    "p": P.to_bytes(32, "little"),
    "p + 1": (P + 1).to_bytes(32, "little"),
}


def hkdf(secret, context, length):
    """HKDF-SHA256 without salt, written from RFC 5869 section 2."""
    pseudorandom_key = hmac.digest(bytes(32), secret, hashlib.sha256)
    out = previous = b""
    for number in range(1, 256):
        previous = hmac.digest(
            pseudorandom_key, previous + context + bytes([number]), hashlib.sha256
        )
        out += previous
    return out[:length]


# X25519


@pytest.mark.parametrize(
    ("scalar", "coordinate", "expected"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_agreement_gives_the_vectors_of_rfc_7748_section_5_2(scalar, coordinate, expected):
    [secret] = keys.agree(bytes.fromhex(scalar), [bytes.fromhex(coordinate)])
    assert expected == secret.hex()


def test_agreement_iterated_gives_the_vectors_of_rfc_7748_section_5_2():
    expected = {
        1: "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079",
        1000: "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51",
    }
    scalar = coordinate = (9).to_bytes(32, "little")
    reached = {}
    for iteration in range(1, 1001):
        scalar, coordinate = keys.agree(scalar, [coordinate])[0], scalar
        reached[iteration] = scalar.hex()
    assert expected == {iteration: reached[iteration] for iteration in expected}


@pytest.mark.parametrize(("private", "public"), [(ALICE, ALICE_PUBLIC), (BOB, BOB_PUBLIC)])
def test_a_private_key_has_the_public_key_of_rfc_7748_section_6_1(private, public):
    assert keys.KeyPair(private, public) == keys.KeyPair.from_private(private)


def test_two_sides_agree_on_the_secret_of_rfc_7748_section_6_1():
    expected = [SHARED]
    assert expected == keys.agree(ALICE, [BOB_PUBLIC])
    assert expected == keys.agree(BOB, [ALICE_PUBLIC])


def test_the_secrets_come_in_the_order_of_the_public_keys():
    publics = [ALICE_PUBLIC, BOB_PUBLIC, ALICE_PUBLIC]
    own = keys.agree(BOB, [BOB_PUBLIC])[0]
    assert [SHARED, own, SHARED] == keys.agree(BOB, publics)


@pytest.mark.parametrize("high_bit", [0, 0x80])
@pytest.mark.parametrize("point", LOW_ORDER.values(), ids=LOW_ORDER)
def test_a_point_of_low_order_is_refused_wherever_it_stands(point, high_bit):
    """The high bit of a public key is ignored (RFC 7748 section 5), so it must not hide one."""
    point = point[:-1] + bytes([point[-1] | high_bit])
    for publics in ([point], [ALICE_PUBLIC, point], [point, ALICE_PUBLIC]):
        with pytest.raises(ValueError, match=r"(?i)shared key"):
            keys.agree(BOB, publics)


def test_a_key_pair_takes_its_private_key_from_the_source_it_is_given():
    expected, asked = [32], []

    def source(count):
        asked.append(count)
        return ALICE

    assert keys.KeyPair(ALICE, ALICE_PUBLIC) == keys.KeyPair.generate(source)
    assert expected == asked


def test_secrets_come_from_the_operating_system():
    assert os.urandom is keys.system_secrets


def test_a_key_pair_shows_its_public_key_only():
    pair = keys.KeyPair.from_private(ALICE)
    for shown in (repr(pair), str(pair), f"{pair}", repr([pair]), repr({"pair": pair})):
        assert ALICE_PUBLIC.hex() in shown
        for form in (ALICE.hex(), repr(ALICE)[2:-1], base64.b64encode(ALICE).decode()):
            assert form not in shown
            assert form[:16] not in shown


def test_a_key_pair_cannot_be_changed():
    pair = keys.KeyPair.from_private(ALICE)
    with pytest.raises(FrozenInstanceError):
        pair.private = BOB  # type: ignore[misc]


# HKDF


def test_derivation_gives_test_case_3_of_rfc_5869():
    expected = (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )
    assert expected == keys.derive(b"\x0b" * 22, b"", 42).hex()


@settings(deadline=None)
@given(
    secret=st.binary(max_size=80), context=st.binary(max_size=80), length=st.integers(1, 32 * 255)
)
def test_derivation_is_hkdf_sha256_without_salt(secret, context, length):
    assert hkdf(secret, context, length) == keys.derive(secret, context, length)


def test_a_derived_key_opens_an_aes_128_stream_by_default():
    assert hkdf(SHARED, b"context", 16) == keys.derive(SHARED, b"context")


# Insecure secrets


def test_insecure_secrets_repeat_themselves():
    first, second = (keys.insecure_secrets(7, 1, 2)(1000) for _ in range(2))
    assert first == second


def test_insecure_secrets_do_not_depend_on_how_many_bytes_are_asked_for_at_once():
    source = keys.insecure_secrets(7, 1, 2)
    counts = [32, 0, 1, 16, 51]
    parts = [source(count) for count in counts]
    assert counts == [len(part) for part in parts]
    assert keys.insecure_secrets(7, 1, 2)(sum(counts)) == b"".join(parts)


def test_insecure_secrets_differ_for_every_seed_round_and_device():
    seeds = (-(2**63), -2, -1, 0, 1, 2, 11, 12, 2**63, 2**64 - 1)
    numbers = (0, 1, 2, 11, 12, 21, 112, 2**31 - 1)
    arguments = list(itertools.product(seeds, numbers, numbers))
    assert len(arguments) == len({keys.insecure_secrets(*which)(16) for which in arguments})
