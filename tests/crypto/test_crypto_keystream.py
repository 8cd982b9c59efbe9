"""The keystream is AES-128-CTR, however it is read."""

import numpy as np
from crypto_reference import fixed_keys, stream_bytes
from hypothesis import example, given
from hypothesis import strategies as st

from hpcfl.crypto import keystream

KEY = fixed_keys(1)[0]
BLOCK = keystream.BLOCK_BYTES
COUNTERS = st.integers(0, 2**64 - 2**20)


@given(stream=COUNTERS, block=COUNTERS, blocks=st.integers(1, 40))
def test_a_stream_and_a_block_are_the_halves_of_the_counter(stream, block, blocks):
    opened = keystream.open_stream(KEY, stream, block)
    assert stream_bytes(KEY, 16 * blocks, stream, block) == opened.update(bytes(16 * blocks))


def test_a_stream_runs_into_the_next_one_after_2_64_blocks_and_not_before():
    last = keystream.open_stream(KEY, 5, 2**64 - 1).update(bytes(32))
    assert stream_bytes(KEY, 16, 5, 2**64 - 1) + stream_bytes(KEY, 16, 6, 0) == last


@given(sizes=st.lists(st.integers(0, 100), max_size=20))
@example(sizes=[BLOCK - 1, 7])
@example(sizes=[BLOCK, 7])
@example(sizes=[BLOCK + 1, 7])
@example(sizes=[2 * BLOCK + 5, 7])
def test_filling_in_any_parts_gives_the_same_bytes(sizes):
    stream = keystream.open_stream(KEY)
    parts = [np.full(size, 0xAA, np.uint8) for size in sizes]
    for part in parts:
        keystream.fill(stream, part)
    assert stream_bytes(KEY, sum(sizes)) == b"".join(part.tobytes() for part in parts)


@given(sizes=st.lists(st.integers(0, 100), max_size=8))
def test_reading_many_keys_gives_the_start_of_each_stream_end_to_end(sizes):
    keys = fixed_keys(len(sizes), seed=1)
    expected = b"".join(map(stream_bytes, keys, sizes))
    assert expected == keystream.read(keys, sizes).tobytes()
