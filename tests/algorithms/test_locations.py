"""Locations survive the wire, and what is not a coding of locations is a ValueError."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples

from hpcfl.algorithms import locations

HEADER = locations.HEADER.itemsize
EXPLICIT = ("bitmap", "gaps")
each_coding = pytest.mark.parametrize("coding", ["auto", *EXPLICIT])


@st.composite
def sets(draw):
    """Return a dimension and increasing positions below it, from very few to very many."""
    dim = draw(st.integers(1, 300) | st.integers(1, 2**32 - 1))
    if dim > 300:
        return dim, sorted(draw(st.sets(st.integers(0, dim - 1), max_size=20)))
    kept = draw(st.integers(0, 2**dim - 1))
    if draw(st.booleans()):
        kept &= draw(st.integers(0, 2**dim - 1)) & draw(st.integers(0, 2**dim - 1))
    return dim, [at for at in range(dim) if kept >> at & 1]


def encode(positions, dim, coding):
    return locations.encode(np.array(positions, np.int64), dim, coding).tobytes()


def decode(message, dim):
    positions, used = locations.decode(np.frombuffer(message, np.uint8), dim)
    assert np.dtype(np.int64) == positions.dtype
    return positions.tolist(), used


def header(coding, rice, count, reserved=0):
    little = "little"
    numbers = reserved.to_bytes(2, little) + count.to_bytes(4, little)
    return bytes([coding, rice]) + numbers


def assert_refused_or_increasing(message, dim):
    """Assert that `message` is a ValueError or positions that a sum can be indexed with.

    The server adds to its sum at all positions at once, so one twice would lose a value.
    """
    try:
        positions, used = decode(message, dim)
    except ValueError:
        return
    assert sorted(set(positions)) == positions
    assert all(0 <= at < dim for at in positions)
    assert HEADER <= used <= len(message)


# Codings


@each_coding
@given(case=sets(), after=st.binary(max_size=9))
@example(case=(1, []), after=b"")
@example(case=(9, [8]), after=b"\x80")
@example(case=(300, [*range(300)]), after=b"\xff")
@example(case=(2**32 - 1, [0, 2**31, 2**32 - 2]), after=b"")
def test_positions_come_back_and_what_follows_them_is_left_alone(coding, case, after):
    dim, positions = case
    if coding == "bitmap" and dim > 300:
        dim, positions = 300, [at for at in positions if at < 300]
    message = encode(positions, dim, coding)
    assert (positions, len(message)) == decode(message + after, dim)


@given(case=sets())
def test_auto_is_the_shorter_coding(case):
    dim, positions = case
    dim = min(dim, 5000)
    positions = [at for at in positions if at < dim]
    by_coding = {coding: encode(positions, dim, coding) for coding in EXPLICIT}
    assert min(map(len, by_coding.values())) == len(encode(positions, dim, "auto"))
    assert encode(positions, dim, "auto") in by_coding.values()
    assert len(by_coding["bitmap"]) == HEADER + -(-dim // 8)


@pytest.mark.parametrize(
    ("positions", "dim", "coding", "documented"),
    [
        ([0, 3, 4, 12], 16, "bitmap", "00 00 0000 04000000 98 08"),
        # Gaps 0, 2, 0, 7 with k = 1: upper parts 1 01 1 0001, lower parts 0 0 0 1, 4 bits unused.
        ([0, 3, 4, 12], 16, "gaps", "01 01 0000 04000000 b1 10"),
        ([], 165_000, "auto", "01 00 0000 00000000"),
    ],
)
def test_codings_are_the_documented_bytes(positions, dim, coding, documented):
    assert bytes.fromhex(documented) == encode(positions, dim, coding)


# Malformed input


@settings(max_examples=examples(500))
@given(
    coding=st.integers(0, 2),
    rice=st.integers(0, 32),
    count=st.integers(0, 40) | st.integers(0, 2**32 - 1),
    body=st.binary(max_size=60),
    dim=st.integers(1, 200) | st.integers(1, 2**32 - 1),
)
def test_random_bodies_are_refused_or_are_increasing_positions(coding, rice, count, body, dim):
    assert_refused_or_increasing(header(coding, rice, count) + body, dim)


@pytest.mark.parametrize("coding", EXPLICIT)
@pytest.mark.parametrize("positions", [[], [0], [4, 5, 99], [*range(100)], [*range(0, 100, 7)]])
def test_a_message_cut_short_anywhere_is_refused(coding, positions):
    message = encode(positions, 100, coding)
    for size in range(len(message)):
        with pytest.raises(ValueError, match=r"no header|cut short"):
            decode(message[:size], 100)


BITMAP, GAPS = locations.BITMAP, locations.GAPS


@pytest.mark.parametrize(
    ("message", "dim", "reason"),
    [
        (b"", 10, "no header"),
        (header(2, 0, 0), 10, "coding 2 is unknown"),
        (header(BITMAP, 1, 0) + bytes(2), 10, "coding 0 is unknown"),
        (header(BITMAP, 0, 0, reserved=1) + bytes(2), 10, "header is invalid"),
        (header(GAPS, 0, 0, reserved=256), 10, "header is invalid"),
        (header(GAPS, 32, 1) + bytes(99), 10, "header is invalid"),
        (header(GAPS, 0, 11) + b"\xff\xff", 10, "header is invalid"),
        (header(BITMAP, 0, 2**32 - 1) + b"\xff\xc0", 10, "header is invalid"),
        (header(BITMAP, 0, 3) + b"\xc0\x00", 10, "3 locations were announced, 2 were received"),
        (header(BITMAP, 0, 1) + b"\x00\x01", 10, "bits beyond its end"),
        (header(GAPS, 0, 1) + b"\xc0", 10, "bits beyond their end"),
        (header(GAPS, 2, 1) + b"\xf0", 10, "bits beyond their end"),
        (header(GAPS, 0, 1) + b"\x00\x00", 10, "cut short"),
        (header(GAPS, 0, 1) + b"\x00\x20", 10, "beyond coordinate 9"),
        (header(GAPS, 31, 1) + b"\x80\x00\x00\x0a", 10, "beyond coordinate 9"),
        (header(GAPS, 3, 2) + b"\xd7", 10, "beyond coordinate 9"),
    ],
)
def test_a_malformed_message_is_refused_with_the_reason(message, dim, reason):
    with pytest.raises(ValueError, match=reason):
        decode(message, dim)
