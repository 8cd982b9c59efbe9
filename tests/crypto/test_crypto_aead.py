"""AES-GCM as shares travel under it: a 128-bit key, a 96-bit nonce, associated data.

The vectors are test cases 1 to 4 of McGrew and Viega, "The Galois/Counter Mode of Operation".
"""

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY = bytes.fromhex("feffe9928665731c6d6a8f9467308308")
NONCE = bytes.fromhex("cafebabefacedbaddecaf888")
PLAINTEXT = bytes.fromhex(
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
)
CIPHERTEXT = bytes.fromhex(
    "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
    "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985"
)
ASSOCIATED = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
SEALED = CIPHERTEXT[:60] + bytes.fromhex("5bc94fbc3221a5db94fae95ae7121a47")

VECTORS = {
    "1": (bytes(16), bytes(12), b"", b"", "58e2fccefa7e3061367f1d57a4e7455a"),
    "2": (
        bytes(16),
        bytes(12),
        bytes(16),
        b"",
        "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf",
    ),
    "3": (KEY, NONCE, PLAINTEXT, b"", CIPHERTEXT.hex() + "4d5c2af327cd64a62cf35abd2ba6fab4"),
    "4": (KEY, NONCE, PLAINTEXT[:60], ASSOCIATED, SEALED.hex()),
}


def flipped(data):
    """Return `data` with each of its bits flipped in turn."""
    number = int.from_bytes(data)
    return [(number ^ 1 << bit).to_bytes(len(data)) for bit in range(8 * len(data))]


@pytest.mark.parametrize(
    ("key", "nonce", "plaintext", "associated", "sealed"), VECTORS.values(), ids=VECTORS
)
def test_sealing_and_opening_give_the_known_vectors(key, nonce, plaintext, associated, sealed):
    assert sealed == AESGCM(key).encrypt(nonce, plaintext, associated).hex()
    assert plaintext == AESGCM(key).decrypt(nonce, bytes.fromhex(sealed), associated)


@pytest.mark.parametrize("part", ["key", "nonce", "sealed", "associated"])
def test_any_flipped_bit_is_detected(part):
    good = {"key": KEY, "nonce": NONCE, "sealed": SEALED, "associated": ASSOCIATED}
    for changed in flipped(good[part]):
        bad = {**good, part: changed}
        with pytest.raises(InvalidTag):
            AESGCM(bad["key"]).decrypt(bad["nonce"], bad["sealed"], bad["associated"])


@pytest.mark.parametrize("size", [0, 15, 16, 75])
def test_a_ciphertext_cut_short_is_detected(size):
    with pytest.raises(InvalidTag):
        AESGCM(KEY).decrypt(NONCE, SEALED[:size], ASSOCIATED)


def test_missing_associated_data_is_detected():
    with pytest.raises(InvalidTag):
        AESGCM(KEY).decrypt(NONCE, SEALED, None)
