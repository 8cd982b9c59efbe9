"""The keystream is AES-128-CTR, however it is read."""

import numpy as np
import pytest
from crypto_reference import fixed_keys, stream_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfl.crypto import keystream

KEY = fixed_keys(1)[0]
COUNTERS = st.integers(0, 2**64 - 2**20)


def filled(sizes):
    """Return what one stream gives when it is filled in parts of these sizes."""
    stream = keystream.open_stream(KEY)
    parts = [np.full(size, 0xAA, np.uint8) for size in sizes]
    for part in parts:
        keystream.fill(stream, part)
    return [part.tobytes() for part in parts]


def test_a_stream_gives_the_vectors_of_sp_800_38a_f_5_1():
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    plaintext = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    ciphertext = bytes.fromhex(
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    stream = keystream.open_stream(key, 0xF0F1F2F3F4F5F6F7, 0xF8F9FAFBFCFDFEFF)
    out = np.empty(64, np.uint8)
    keystream.fill(stream, out)
    mask = int.from_bytes(out.tobytes())
    assert ciphertext == (int.from_bytes(plaintext) ^ mask).to_bytes(64)


@settings(deadline=None)
@given(stream=COUNTERS, block=COUNTERS, blocks=st.integers(1, 40))
def test_a_stream_and_a_block_are_the_halves_of_the_counter(stream, block, blocks):
    opened = keystream.open_stream(KEY, stream, block)
    assert stream_bytes(KEY, 16 * blocks, stream, block) == opened.update(bytes(16 * blocks))


def test_a_stream_runs_into_the_next_one_after_2_64_blocks_and_not_before():
    last = keystream.open_stream(KEY, 5, 2**64 - 1).update(bytes(32))
    assert stream_bytes(KEY, 16, 5, 2**64 - 1) + stream_bytes(KEY, 16, 6, 0) == last


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 100), max_size=20))
def test_filling_in_any_parts_gives_the_same_bytes(sizes):
    assert stream_bytes(KEY, sum(sizes)) == b"".join(filled(sizes))


@pytest.mark.parametrize("extra", [-1, 0, 1, keystream.BLOCK_BYTES + 5])
def test_filling_more_than_a_block_goes_on_with_the_stream(extra):
    sizes = [keystream.BLOCK_BYTES + extra, 7]
    assert stream_bytes(KEY, sum(sizes)) == b"".join(filled(sizes))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 100), max_size=8))
def test_reading_many_keys_gives_the_start_of_each_stream_end_to_end(sizes):
    keys = fixed_keys(len(sizes), seed=1)
    expected = b"".join(map(stream_bytes, keys, sizes))
    assert expected == keystream.read(keys, sizes).tobytes()


def test_reading_refuses_a_size_too_few():
    with pytest.raises(ValueError, match="zip"):
        keystream.read(fixed_keys(2), [16])


@pytest.mark.parametrize("size", [0, 15, 17, 24, 32])
def test_only_keys_of_128_bits_open_a_stream(size):
    with pytest.raises(ValueError, match="key size"):
        keystream.open_stream(bytes(size))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_stream_or_block_that_does_not_fit_the_counter_is_refused(number):
    for arguments in ({"stream": number}, {"block": number}):
        with pytest.raises(OverflowError):
            keystream.open_stream(KEY, **arguments)


def test_the_zeros_that_are_encrypted_cannot_be_overwritten():
    with pytest.raises(ValueError, match="read-only"):
        keystream.ZEROS[0] = 1
    assert not keystream.ZEROS.any()
