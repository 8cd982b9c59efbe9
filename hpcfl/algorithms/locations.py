"""The wire format of a sparse upload's coordinates: a bitmap, or Rice-coded gaps.

======  ====  ============================================================
offset  size  field (little-endian)
======  ====  ============================================================
0       1     coding: 0 bitmap, 1 gaps
1       1     Rice parameter k, 0 for a bitmap
2       2     zero
4       4     number of locations
8       ..    body, the first bit of a byte being its most significant
======  ====  ============================================================

The body of a bitmap is d bits. The body of gaps holds, for each location, its distance to the
previous one minus 1: first all upper parts (distance >> k) in unary, as that many zeros and a one,
then all lower parts in k bits. As the two are apart, both can be read without a loop.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

HEADER = np.dtype([("coding", "u1"), ("rice", "u1"), ("reserved", "<u2"), ("count", "<u4")])
BITMAP, GAPS = 0, 1
MAX_RICE = 31

Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def encode(positions: Positions, dim: int, coding: str) -> Bytes:
    """Encode increasing `positions` below `dim`; ``"auto"`` takes the shorter coding."""
    bitmap_bytes = -(-dim // 8)
    gaps = np.diff(positions, prepend=-1) - 1
    rice, gap_bits = _best_rice(gaps)
    if coding == "auto":
        coding = "bitmap" if bitmap_bytes <= -(-gap_bits // 8) else "gaps"
    if coding == "bitmap":
        selected = np.zeros(dim, np.bool_)
        selected[positions] = True
        return _with_header(BITMAP, 0, positions.size, np.packbits(selected))
    return _with_header(GAPS, rice, positions.size, _rice_encode(gaps, rice, gap_bits))


def decode(message: Bytes, dim: int) -> tuple[Positions, int]:
    """Return the positions, and the number of bytes of `message` that encode them.

    ValueError if the bytes do not begin with a coded set of positions below `dim`.
    """
    if message.size < HEADER.itemsize:
        raise ValueError("the locations have no header")
    coding, rice, reserved, count = message[: HEADER.itemsize].view(HEADER)[0].tolist()
    if reserved or count > dim or rice > MAX_RICE:
        raise ValueError("the locations' header is invalid")
    body = message[HEADER.itemsize :]
    if coding == BITMAP and rice == 0:
        positions, used = _read_bitmap(body, dim)
    elif coding == GAPS:
        positions, used = _read_gaps(body, count, rice, dim)
    else:
        raise ValueError(f"the locations' coding {coding} is unknown")
    if positions.size != count:
        raise ValueError(f"{count} locations were announced, {positions.size} were received")
    return positions, HEADER.itemsize + used


def expected_bytes(share: float, dim: int, coding: str) -> float:
    """Return the mean size in bytes, without the header, of coded i.i.d. positions.

    Each of `dim` positions is included with the probability `share`; "auto" is the shorter coding.
    """
    bitmap = math.ceil(dim / 8)
    # E[floor(gap / 2^k)] of a geometric gap from 0: r / (1 - r), r = (1 - p)^(2^k).
    stay = 1 - share
    bits = []
    for rice in range(MAX_RICE + 1):
        ratio = stay ** (2**rice)
        bits.append(share * dim * (ratio / (1 - ratio) + 1 + rice) if ratio < 1 else math.inf)
    gaps = min(bits) / 8
    if coding == "bitmap" or (coding == "auto" and bitmap <= gaps):
        return bitmap
    return gaps


def _with_header(coding: int, rice: int, count: int, body: Bytes) -> Bytes:
    header = np.array((coding, rice, 0, count), HEADER).reshape(1).view(np.uint8)
    return np.concatenate([header, body])


def _best_rice(gaps: Positions) -> tuple[int, int]:
    """Return the Rice parameter with the shortest code, and the code's size in bits."""
    rice, size = 0, int(gaps.sum()) + gaps.size
    # Each step saves less than the one before, so the first without savings ends the search.
    while rice < MAX_RICE:
        longer = int((gaps >> rice + 1).sum()) + gaps.size * (2 + rice)
        if longer >= size:
            break
        rice, size = rice + 1, longer
    return rice, size


def _rice_encode(gaps: Positions, rice: int, size: int) -> Bytes:
    bits = np.zeros(size, np.uint8)
    upper = gaps >> rice
    bits[np.cumsum(upper + 1) - 1] = 1
    if rice:
        lower = bits[size - rice * gaps.size :].reshape(gaps.size, rice)
        for k in range(rice):
            lower[:, rice - 1 - k] = gaps >> k & 1
    return np.packbits(bits)


def _read_bitmap(body: Bytes, dim: int) -> tuple[Positions, int]:
    used = -(-dim // 8)
    if body.size < used:
        raise ValueError("the bitmap of locations is cut short")
    bits = np.unpackbits(body[:used])
    if bits[dim:].any():
        raise ValueError("the bitmap of locations has bits beyond its end")
    return np.flatnonzero(bits.view(np.bool_)), used


def _read_gaps(body: Bytes, count: int, rice: int, dim: int) -> tuple[Positions, int]:
    # The upper parts add up to less than dim >> rice, so this many bits hold the whole code.
    at_most = count * (1 + rice) + (dim >> rice)
    bits = np.unpackbits(body[: -(-at_most // 8)])
    # NumPy searches truth values several times as fast as numbers.
    ends = np.flatnonzero(bits.view(np.bool_))[:count]
    if ends.size < count:
        raise ValueError("the coded gaps are cut short")
    unary = int(ends[-1]) + 1 if count else 0
    # Checked before the shift: beyond this limit, the sums below would overflow.
    if unary - count > dim >> rice:
        raise ValueError(f"a location lies beyond coordinate {dim - 1}")
    size = unary + count * rice
    used = -(-size // 8)
    if bits.size < size or bits[size : 8 * used].any():
        raise ValueError("the coded gaps are cut short or have bits beyond their end")
    gaps = np.diff(ends, prepend=-1) - 1 << rice
    lower = bits[unary:size].reshape(count, rice)
    for k in range(rice):
        gaps |= lower[:, rice - 1 - k].astype(np.int64) << k
    positions = np.cumsum(gaps + 1) - 1
    if count and positions[-1] >= dim:
        raise ValueError(f"a location lies beyond coordinate {dim - 1}")
    return positions, used
