"""Masks that add up: ring-LWE with public polynomials (as in Willow and OPA, arXiv:2410.22303).

In R = Z[x] / (x**n + 1), n = 2048, a vector m is masked as ``c = a k + e + 2**delta m`` mod 2**W.
The polynomials ``a`` are public; the key k and the errors e are small and secret. So the sum of
masked vectors is masked by the sum of keys, and rounding removes the sum of errors. For errors of
deviation above 3.2 and W of at most 54 bits, the table of the Homomorphic Encryption Standard
promises 128 bits of security.

Products are computed with floating-point FFTs, whose error is far below 1/2: polynomials are cut
into digits of 26 bits, and keys into digits of 8 bits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from hpcfl.crypto import keystream, native
from hpcfl.values import dataclass

RING_DIM = 2048  # n
MOST_BITS = 52  # of W; the table allows 54
# Keys and errors are B - 42 for B of the binomial distribution of 84 fair coins.
COINS = 84
LARGEST = COINS // 2
SIGMA = math.sqrt(COINS) / 2
# The sum of errors is below half of 2**delta if it is below nine deviations.
DEVIATIONS = 9
_DIGIT_BITS = 26
_HALF = 1 << _DIGIT_BITS - 1
_ZERO = _HALF + (_HALF << _DIGIT_BITS)  # the word whose digits are zero
# Adding it leaves no bits for fractions: for magnitudes below 2**51.
_ROUNDER = 1.5 * 2.0**52
# Polynomials whose transforms stay in cache.
_AT_ONCE = 8

Words = NDArray[np.uint64]
Small = NDArray[np.int64]

_TWIST = np.exp(1j * math.pi / RING_DIM * np.arange(RING_DIM))


@dataclass(frozen=True)
class Packing:
    """How values are placed in the coefficients of polynomials."""

    values: int  # v: number of values in a word
    bits: int  # b: of a value; the sum of all values in a place is of magnitude below 2**(b - 1)
    error_bits: int  # delta

    @classmethod
    def of(cls, bits: int, summands: int) -> Packing:
        """Return the densest packing of sums of `bits` bits over the errors of `summands`."""
        error_bits = math.ceil(math.log2(2 * DEVIATIONS * SIGMA * math.sqrt(summands)))
        return cls((MOST_BITS - error_bits) // bits, bits, error_bits)

    @property
    def word_bits(self) -> int:
        """W: size of a word, a multiple of four, so that two words are whole bytes."""
        return -(-(self.values * self.bits + self.error_bits) // 4) * 4

    def polynomials(self, dim: int) -> int:
        """Return the number P of polynomials for a vector of `dim` values."""
        return -(-dim // (self.values * RING_DIM))

    def wire_bytes(self, words: int) -> int:
        """Return the number of bytes of an even number of words on the wire."""
        return words // 2 * (self.word_bits // 4)

    def spread(self, values: Small) -> Words:
        """Return the words 2**delta (x_0 + 2**b x_1 + ..) of up to P n v values, shape (P n,)."""
        padded = np.zeros(self.polynomials(values.size) * RING_DIM * self.values, np.int64)
        padded[: values.size] = values
        words = padded[:: self.values] << self.error_bits
        for place in range(1, self.values):
            words += padded[place :: self.values] << (self.error_bits + place * self.bits)
        return words.view(np.uint64)

    def collect(self, words: Words, dim: int) -> Small:
        """Return the `dim` sums of values in sums of words, without the sum of the errors."""
        unused = 64 - self.word_bits
        rest = ((words + np.uint64(1 << self.error_bits - 1)) << np.uint64(unused)).view(np.int64)
        rest >>= unused + self.error_bits
        sums = np.empty((words.size, self.values), np.int64)
        for place in range(self.values):
            sums[:, place] = (rest << (64 - self.bits)) >> (64 - self.bits)
            rest = (rest - sums[:, place]) >> self.bits
        return sums.reshape(-1)[:dim]

    def pack(self, words: Words, out: NDArray[np.uint8]) -> None:
        """Write words modulo 2**W to `out`: lowest bits first, two words in W / 4 bytes."""
        first, second = words[::2] & np.uint64((1 << self.word_bits) - 1), words[1::2]
        low, high = self._ends(out)
        np.bitwise_or(first, second << np.uint64(self.word_bits), out=low)
        first >>= np.uint64(2 * self.word_bits - 64)
        np.bitwise_or(first, second << np.uint64(64 - self.word_bits), out=high)

    def add(self, packed: NDArray[np.uint8], total: Words) -> None:
        """Add the words of a payload to a total modulo 2**W, of the same even number of words."""
        low, high = self._ends(packed)
        # What is beyond W bits does not matter.
        total[::2] += low
        total[1::2] += high >> np.uint64(64 - self.word_bits)

    def _ends(self, packed: NDArray[np.uint8]) -> tuple[Words, Words]:
        """Return views of the first and of the last 64 bits of each pair of words; they overlap."""
        width = self.word_bits // 4
        pairs = packed.size // width
        low = np.ndarray(pairs, "<u8", packed, 0, (width,))
        return low, np.ndarray(pairs, "<u8", packed, width - 8, (width,))


def small(stream: CipherContext, count: int) -> Small:
    """Return the next `count` keys or errors of a stream, 16 bytes each: B - 42, B ~ Bin(84)."""
    coins = _words(stream, 2 * count)
    heads = np.bitwise_count(coins[::2])
    heads += np.bitwise_count(coins[1::2] & np.uint64((1 << COINS - 64) - 1))
    return heads.astype(np.int64) - LARGEST


def _words(stream: CipherContext, count: int) -> Words:
    words = np.empty(count, "<u8")
    keystream.fill(stream, words.view(np.uint8))
    return words


def multiplier(key: Small) -> Callable[[Words], Words]:
    """Return a function that multiplies polynomials by a key, or a sum of keys, shape (n,).

    It takes polynomials as uniform words, end to end, and may overwrite them: the coefficient of a
    word is the word less `_ZERO`, and only its lowest 52 bits count.
    """
    digit = key.astype(np.int8).astype(np.int64)  # the lowest, from -128 to 127
    times, rest = (_compiled() or _by_numpy)(digit), (key - digit) >> 8
    if not rest.any():
        return times
    more = multiplier(rest)
    return lambda words: (more(words.copy()) << np.uint64(8)) + times(words)


def _by_numpy(key: Small) -> Callable[[Words], Words]:
    spectrum = np.fft.fft(key * _TWIST)

    def times(words: Words) -> Words:
        words = words.reshape(-1, RING_DIM)
        digits = np.empty(words.shape, np.complex128)
        digits.real = words & np.uint64(2 * _HALF - 1)
        digits.imag = (words >> np.uint64(_DIGIT_BITS)) & np.uint64(2 * _HALF - 1)
        digits -= complex(_HALF, _HALF)
        digits *= _TWIST
        np.fft.fft(digits, out=digits)
        digits *= spectrum
        np.fft.ifft(digits, out=digits)
        digits *= _TWIST.conj()
        # Rounds to integers, which are then the lowest bits of the numbers' binary form.
        digits += complex(_ROUNDER, _ROUNDER)
        low, high = digits.view(np.uint64).reshape(-1, 2).T
        return (high << np.uint64(_DIGIT_BITS)) + low - np.uint64(1 << 51)

    return times


@cache
def _compiled() -> Callable[[Small], Callable[[Words], Words]] | None:
    """Return `_by_numpy` as ``kernel.c`` does it, or None."""
    turns = [0, 0.5]  # angles of the w of all nodes, in units of pi
    for k in range(2, RING_DIM // 4):
        turns.append(turns[k // 2] / 2 + k % 2 / 2)
    nodes = np.exp(1j * math.pi * np.array(turns))
    try:
        function = native.function("hpcfl_multiply", ctypes.c_size_t, *[ctypes.c_void_p] * 4)
    except AttributeError:
        return None

    def compiled(key: Small) -> Callable[[Words], Words]:
        longer, transforms = np.concatenate([-key[-3:], key]), np.empty((4, 2, RING_DIM))
        powers = np.stack([longer[3 - k :][:RING_DIM] for k in range(4)]) + _ZERO
        function(4, powers.ctypes, transforms.ctypes, nodes.ctypes, None)

        def times(words: Words) -> Words:
            place, count = words.ctypes.data, words.size // RING_DIM
            function(count, place, place, nodes.ctypes.data, transforms.ctypes.data)
            return words

        return times

    key, words = np.arange(RING_DIM) % 251 - 125, (np.arange(RING_DIM) ** 5).astype("<u8")
    wrong = _by_numpy(key)(words) ^ compiled(key)(words)
    return None if (wrong << np.uint64(64 - MOST_BITS)).any() else compiled


def mask(
    packing: Packing,
    values: Small,
    public_stream: CipherContext,
    secret_stream: CipherContext,
    key: Small,
    out: NDArray[np.uint8],
) -> None:
    """Write a masked vector's words to `out`; its errors are the next of `secret_stream`.

    A key must not mask two vectors: their difference would be masked by errors only.
    """
    for part, words in masks(public_stream, key, packing.polynomials(values.size)):
        place = slice(part.start * packing.values, part.stop * packing.values)
        words += packing.spread(values[place])
        words += small(secret_stream, words.size).view(np.uint64)
        bounds = slice(packing.wire_bytes(part.start), packing.wire_bytes(part.stop))
        packing.pack(words, out[bounds])


def masks(stream: CipherContext, key: Small, count: int) -> Iterator[tuple[slice, Words]]:
    """Yield the words of ``a k`` for the `count` public polynomials of a stream, part by part."""
    multiply = multiplier(key)
    for start in range(0, count, _AT_ONCE):
        part = slice(start * RING_DIM, min(start + _AT_ONCE, count) * RING_DIM)
        yield part, multiply(_words(stream, part.stop - part.start))
