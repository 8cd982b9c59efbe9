"""Groups agree with Python's integers, on the wire as well, and their masks are exactly uniform.

F_q rejects one word in 859 million, so rejection is tested on smaller primes, which reject a half
or a quarter of all words, the primes of few bits among them, and on made-up keystreams.
"""

import itertools

import numpy as np
import pytest
from crypto_reference import assert_uniform, fixed_keys, group_elements
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.crypto import groups, keystream
from hpcfl.crypto.groups import (
    BLOCK_BYTES,
    FQ,
    GROUPS,
    PACKED_PAIRS,
    STREAMS_AT_ONCE,
    Field,
)

HALF = Field(2**31 - 1, "rejects a half")
QUARTER = Field(3 * 2**30 + 1, "rejects a quarter")

each_group = pytest.mark.parametrize(
    "group", [*GROUPS.values(), HALF, QUARTER], ids=lambda group: group.name
)


def vector(length, group):
    """Return elements of every size, the largest first."""
    values = np.random.default_rng(length).integers(0, group.modulus, length)
    values[:1] = group.modulus - 1
    return values.astype(group.dtype)


class FakeStream:
    """A keystream of chosen words."""

    def __init__(self, words, dtype="<u4"):
        self._bytes = np.array(words, dtype).tobytes()

    def update(self, data):
        out, self._bytes = self._bytes[: len(data)], self._bytes[len(data) :]
        return out

    def update_into(self, data, out):
        out[:] = self.update(bytes(data))
        return len(data)


@pytest.fixture
def fake_streams(monkeypatch):
    """Return a function that makes every key's streams consist of given words."""

    def use(streams, dtype="<u4"):
        def open_stream(key, stream=0, block=0):
            return FakeStream(streams[stream][4 * block :], dtype)

        monkeypatch.setattr(keystream, "open_stream", open_stream)
        monkeypatch.setattr(keystream, "at_once", lambda size: False)
        monkeypatch.setattr(keystream, "counts", lambda size: False)

    return use


# Arithmetic


@each_group
def test_reducing_agrees_with_integers_wherever_int64_ends_or_the_modulus_begins(group):
    q = group.modulus
    centres = [0, q, -q, 2 * q, q << 30, -(q << 30), 2**32, 2**31, group.half_range, 2**62 + 3]
    centres += [2**8, 2**16, -(2**16), 2**24]
    values = [centre + offset for centre in centres for offset in (-2, -1, 0, 1, 2)]
    values += [-(2**63), 1 - 2**63, 2**63 - 2, 2**63 - 1]
    reduced = group.reduce(np.array(values, np.int64))
    assert [value % q for value in values] == reduced.tolist()
    assert group.dtype == reduced.dtype
    half = group.half_range
    values = [-half, 1 - half, -2, -1, 0, 1, 2, half - 1, half]
    assert values == group.decode(group.reduce(np.array(values, np.int64))).tolist()
    assert 0 <= q - (2 * half + 1) <= 1, "the half range could be larger"


@each_group
@given(data=st.data())
def test_a_decoded_sum_of_elements_is_the_sum_of_the_integers(group, data):
    """As long as the sum fits, whatever wraps on the way."""
    half = group.half_range
    parts = data.draw(st.lists(st.integers(-half, half), min_size=1, max_size=8))
    parts.append(data.draw(st.integers(-half, half)) - sum(parts))
    total = np.zeros(1, group.dtype)
    for part in parts:
        element = group.reduce(np.array([part], np.int64))
        kept = element.copy()
        group.add_into(total, element)
        assert kept == element
        assert total < group.modulus
    assert [sum(parts)] == group.decode(total).tolist()


# On the wire


def packed_bits(elements, bits):
    """Return the bytes of the number whose digits, in base 2**bits, are the elements."""
    number = sum(element << bits * k for k, element in enumerate(elements))
    return number.to_bytes(-(-bits * len(elements) // 8), "little")


@each_group
@given(data=st.data())
def test_elements_are_packed_like_the_digits_of_one_number(group, data):
    """However many pairs are packed at a time."""
    for pairs in (PACKED_PAIRS, 1, 3):
        top = group.modulus - 1
        digits = data.draw(st.lists(st.integers(0, top) | st.sampled_from([0, top]), max_size=20))
        elements = np.array(digits, group.dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "PACKED_PAIRS", pairs)
            packed = group.pack(elements)
            assert packed_bits(digits, group.bits) == packed.tobytes()
            assert group.wire_bytes(len(digits)) == packed.size
            # As it lies in a message: at any address.
            received = np.concatenate([np.zeros(1, np.uint8), packed])[1:]
            unpacked = group.unpack(received, len(digits))
        assert digits == unpacked.tolist()
        assert group.dtype == unpacked.dtype


@each_group
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 4), (5, 7)])
def test_rows_are_packed_one_by_one(group, shape):
    """Those of an odd number of elements end within a pair."""
    rows = np.random.default_rng(1).integers(0, group.modulus, shape).astype(group.dtype)
    packed = group.pack_rows(rows)
    assert (len(rows), group.wire_bytes(rows.shape[1])) == packed.shape
    assert [group.pack(row).tobytes() for row in rows] == [row.tobytes() for row in packed]


def test_bits_behind_the_last_value_are_refused():
    """Two messages would otherwise say the same."""
    for name in ("ring12", "ring28", "field12", "field28"):
        packed = GROUPS[name].pack(np.array([5, 6, 7], GROUPS[name].dtype))
        packed[-1] |= 0x10
        with pytest.raises(ValueError, match="bits behind the last value are not zero"):
            GROUPS[name].unpack(packed, 3)


# Masks


@each_group
def test_masks_are_added_as_integers_would_be(group, monkeypatch):
    """However many streams are open at once, and however long the blocks are."""
    for length, streams, size in (
        (1, STREAMS_AT_ONCE, BLOCK_BYTES),
        (BLOCK_BYTES // 4 + 1, STREAMS_AT_ONCE, BLOCK_BYTES),
        *((33, streams, BLOCK_BYTES) for streams in (1, 2, 5, 7)),
        *((203, STREAMS_AT_ONCE, size) for size in (16, 256)),
    ):
        monkeypatch.setattr(groups, "STREAMS_AT_ONCE", streams)
        monkeypatch.setattr(groups, "BLOCK_BYTES", size)
        count = 5 if length < 1000 else 2
        keys, signs = fixed_keys(count), [1, -1, -1, 1, 1][:count]
        values = vector(length, group)
        before = values.copy()
        expected = values.astype(object)
        for key, sign in zip(keys, signs, strict=True):
            expected = expected + sign * np.array(group_elements(key, length, group), object)
        out = group.add_masks(values, iter(keys), iter(signs))
        assert (expected % group.modulus).tolist() == out.tolist()
        assert np.array_equal(before, values), "the vector itself was changed"
        assert values.tolist() == group.add_masks(out, keys, [-sign for sign in signs]).tolist()
        assert values.tolist() == group.add_masks(values, [], []).tolist()


@each_group
@given(counts=st.lists(st.integers(0, 30), max_size=6))
def test_elements_of_many_keys_are_the_beginnings_of_their_masks_end_to_end(group, counts):
    keys = fixed_keys(len(counts), seed=3)
    expected = [
        element
        for key, count in zip(keys, counts, strict=True)
        for element in group_elements(key, count, group)
    ]
    assert expected == group.elements(keys, counts).tolist()


@pytest.mark.parametrize("sign", [1, -1])
@each_group
def test_the_largest_masks_add_up_exactly_in_more_than_a_full_batch(group, sign, fake_streams):
    fake_streams({0: [group.modulus - 1] * 8}, group.dtype)
    count = groups.STREAMS_AT_ONCE + 1
    values = vector(5, group)
    expected = [(v + sign * count * (group.modulus - 1)) % group.modulus for v in values.tolist()]
    masked_vector = group.add_masks(values, itertools.repeat(bytes(16), count), [sign] * count)
    assert expected == masked_vector.tolist()


# Rejection


@pytest.mark.parametrize("field", [FQ, HALF, QUARTER], ids=lambda field: field.name)
def test_a_word_is_rejected_from_the_modulus_on(field, fake_streams):
    """The word at the same position of the first stream that has an element there replaces it."""
    q, top = field.modulus, 2**32 - 1
    streams = {
        0: [0, q - 1, q, q + 1, top, q - 2, top, q],
        1: [10, 11, 12, q, q - 1, 15, q, top],
        2: [20, 21, 22, 23, 24, 25, q + 1, 0],
        3: [30, 31, 32, 33, 34, 35, 36, 37],
    }
    fake_streams(streams)
    expected = [0, q - 1, 12, 23, q - 1, q - 2, 36, 0]
    for length in range(1, 9):  # so that a border word is judged without larger ones around it
        zeros = np.zeros(length, np.uint32)
        assert expected[:length] == field.elements([bytes(16)], [length]).tolist()
        assert expected[:length] == field.add_masks(zeros, [bytes(16)], [1]).tolist()


@pytest.mark.parametrize("bits", [8, 12, 16, 20, 24, 28])
def test_in_few_bits_the_lowest_of_a_word_are_judged(bits, fake_streams):
    """What is above them does not matter."""
    field = GROUPS[f"field{bits}"]
    p, top = field.modulus, 2**bits - 1
    above = 0 if field.whole_words else 1 << bits
    words = {0: [0, p - 1, above | p, above | top], 1: [9, 9, top, above | 7], 2: [8, 8, 6, 5]}
    fake_streams({k: words[k] * (4 // field.dtype.itemsize) for k in words}, field.dtype)
    for length in range(1, 5):
        zeros = np.zeros(length, field.dtype)
        expected = [0, p - 1, 6, 7][:length]
        assert expected == field.elements([bytes(16)], [length]).tolist()
        assert expected == field.add_masks(zeros, [bytes(16)], [1]).tolist()


@each_group
def test_elements_are_uniform(group):
    """Reduced instead of rejected words would show with the prime that rejects a quarter."""
    elements = group.elements(fixed_keys(60, seed=5), [1000] * 60)
    assert_uniform(elements, group.modulus, min(256, group.modulus))
    if group.name.startswith("ring"):
        # What the bins above are too coarse for.
        assert_uniform(elements & group.dtype.type(255), 256)
