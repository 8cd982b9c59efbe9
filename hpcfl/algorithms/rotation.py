"""Random rotations, after which no coordinate of a vector is much larger than the others.

Few quantisation levels then lose little: what is clipped, or rounded, is about as much everywhere
(Suresh et al. 2017, "Distributed mean estimation with limited communication", section 3; Kairouz,
Liu and Steinke 2021, section 2.3). It is a Walsh-Hadamard transform after random signs, which all
know. A transform has as many coordinates as a power of two: instead of filling vectors up, which
would cost bytes, one is made of the first 2**k coordinates, then one of the last 2**k, the largest
power that fits. Each is orthogonal, so that both together are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Elements that stay in cache while they are transformed among themselves.
CACHED = 1 << 15


class Rotation:
    """The rotation of vectors of `dim` coordinates that follows from a generator."""

    def __init__(self, dim: int, generator: np.random.Generator) -> None:
        size = 1 << dim.bit_length() - 1
        parts = [slice(0, size)] if size == dim else [slice(0, size), slice(dim - size, dim)]
        self._signs = [(part, _signs(size, generator)) for part in parts]

    def turn(self, vector: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the rotated vector, of the same shape, dtype and l2 norm."""
        turned = vector.copy()
        for part, signs in self._signs:
            values = turned[part]
            values *= signs
            _transform(values)
        return turned

    def undo(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the vector that was rotated to this one, up to rounding."""
        original = vector.copy()
        for part, signs in reversed(self._signs):
            values = original[part]
            _transform(values)
            values *= signs
        return original


def butterflies(dim: int) -> float:
    """Return how many additions and subtractions a rotation takes, of one element each."""
    size = 1 << dim.bit_length() - 1
    return size * (size.bit_length() - 1) * (1 if size == dim else 2)


def _signs(size: int, generator: np.random.Generator) -> NDArray[np.int8]:
    bits = np.unpackbits(np.frombuffer(generator.bytes(-(-size // 8)), np.uint8), count=size)
    return 1 - 2 * bits.view(np.int8)


def _transform(values: NDArray[np.floating]) -> None:
    """Replace 2**k values by their orthonormal Walsh-Hadamard transform.

    By additions in an order of their own, the same on every machine, so that devices and those that
    check them round the same numbers.
    """
    size = values.size
    rows = max(1, size // CACHED)
    # Rows against each other, then what is within each: as long as a row is in cache.
    _sum_up(values.reshape(rows, -1))
    columns = size // rows
    inner = 1 << (columns.bit_length() - 1) // 2
    for row in values.reshape(rows, columns):
        square = row.reshape(-1, inner)
        _sum_up(square)
        turned = np.ascontiguousarray(square.T)
        _sum_up(turned)
        square[:] = turned.T
    values *= values.dtype.type(1 / math.sqrt(size))


def _sum_up(rows: NDArray[np.floating]) -> None:
    """Transform the rows of an array against each other, all of its columns alike, in place."""
    count, length = rows.shape
    half = 1
    while half < count:
        pairs = rows.reshape(-1, 2, half * length)
        first, second = pairs[:, 0], pairs[:, 1]
        difference = first - second
        first += second
        second[:] = difference
        half *= 2
