"""Keys are those of RFC 7748 and RFC 5869, and private ones stay private."""

import base64
import itertools
import os

import pytest

from hpcfl.crypto import keys

# RFC 7748, section 6.1.
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")

P = 2**255 - 19
LOW_ORDER = {
    "zero": 0,
    "one": 1,
    "order 8": 325606250916557431795983626356110631294008115727848805560023387167927233504,
    "other of 8": 39382357235489614581723060781553021112529911719440698176882885853963445705823,
    "p - 1": P - 1,
    "p": P,
    "p + 1": P + 1,
}


def test_key_pairs_agree_on_the_secret_of_rfc_7748_in_the_order_of_the_public_keys():
    assert keys.KeyPair(ALICE, ALICE_PUBLIC) == keys.KeyPair.from_private(ALICE)
    assert keys.KeyPair(BOB, BOB_PUBLIC) == keys.KeyPair.from_private(BOB)
    assert [SHARED] == keys.agree(ALICE, [BOB_PUBLIC])
    own = keys.agree(BOB, [BOB_PUBLIC])[0]
    assert [SHARED, own, SHARED] == keys.agree(BOB, [ALICE_PUBLIC, BOB_PUBLIC, ALICE_PUBLIC])


# Keys that look like those that are none, in some of their 64-bit words.
USABLE = [ALICE_PUBLIC, BOB_PUBLIC, *((2**k + 1).to_bytes(32, "little") for k in (64, 191, 254))]
USABLE += [(P - k).to_bytes(32, "little") for k in (2, 3, 2**64, 2**192)]


@pytest.mark.parametrize("high_bit", [0, 2**255])
def test_only_the_one_spelling_of_a_key_is_a_public_key(high_bit):
    assert keys.unusable(b"") is None is keys.unusable(b"".join(USABLE))
    too_large = (2**255 + int.from_bytes(ALICE_PUBLIC, "little"), P + 2, 2**255 - 1)
    wrong = [(point, "low order") for point in LOW_ORDER.values()]
    for number, reason in [*wrong, *((number, "canonical") for number in too_large)]:
        public = (number | high_bit).to_bytes(32, "little")
        for before in range(len(USABLE)):
            listed = [*USABLE[:before], public, *USABLE[before:], bytes(32)]
            place, why = keys.unusable(b"".join(listed))
            assert before == place
            assert reason in why


def test_a_key_pair_takes_its_private_key_from_a_source_and_shows_the_public_one_only():
    asked = []
    pair = keys.KeyPair.generate(lambda count: asked.append(count) or ALICE)
    assert (keys.KeyPair(ALICE, ALICE_PUBLIC), [32]) == (pair, asked)
    shown = f"{pair!r} {pair} {[pair]!r}"
    assert repr(ALICE_PUBLIC) in shown
    assert os.urandom is keys.system_secrets is keys.secrets_of(None, 0, 0)
    for form in (ALICE.hex(), repr(ALICE)[2:-1], base64.b64encode(ALICE).decode()):
        assert form[:16] not in shown


def test_derivation_gives_test_case_3_of_rfc_5869():
    expected = (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )
    assert expected == keys.derive(b"\x0b" * 22, b"", 42).hex()


def test_insecure_secrets_repeat_themselves_and_differ_for_every_seed_round_and_device():
    source, counts = keys.insecure_secrets(7, 1, 2), [32, 0, 1, 16, 51]
    parts = [source(count) for count in counts]
    assert counts == [len(part) for part in parts]
    assert keys.insecure_secrets(7, 1, 2)(sum(counts)) == b"".join(parts)
    seeds, numbers = (-(2**63), -1, 0, 1, 11, 2**64 - 1), (0, 1, 2, 11, 12, 21, 112, 2**31 - 1)
    arguments = list(itertools.product(seeds, numbers, numbers))
    assert len(arguments) == len({keys.insecure_secrets(*which)(16) for which in arguments})
