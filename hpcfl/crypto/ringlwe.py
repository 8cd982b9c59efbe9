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

import math
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from hpcfl.crypto import keystream
from hpcfl.values import dataclass

RING_DIM = 2048  # n
MOST_BITS = 52  # of W; the table allows 54
# Keys and errors are B - 42 for B of the binomial distribution of 84 fair coins.
COINS = 84
LARGEST = COINS // 2
SIGMA = math.sqrt(COINS) / 2
# The sum of errors is below half of 2**delta if it is below nine deviations.
DEVIATIONS = 9
_DIGIT_BITS, _KEY_DIGIT_BITS = 26, 8
# Adding it leaves no bits for fractions: for magnitudes below 2**51.
_ROUNDER = 1.5 * 2.0**52
# Polynomials whose transforms stay in cache.
_AT_ONCE = 8

Words = NDArray[np.uint64]
Small = NDArray[np.int64]
_Complex = NDArray[np.complex128]

_TWIST = np.exp(1j * math.pi / RING_DIM * np.arange(RING_DIM))
_UNTWIST = _TWIST.conj()


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
        once = _AT_ONCE * RING_DIM // 2
        for start in range(0, low.size, once):
            some = total[2 * start : 2 * (start + once)]
            # What is beyond W bits does not matter.
            some[::2] += low[start : start + once]
            some[1::2] += high[start : start + once] >> np.uint64(64 - self.word_bits)

    def _ends(self, packed: NDArray[np.uint8]) -> tuple[Words, Words]:
        """Return views of the first and of the last 64 bits of each pair of words; they overlap."""
        width = self.word_bits // 4
        pairs = packed.size // width
        low = np.ndarray(pairs, "<u8", packed, 0, (width,))
        return low, np.ndarray(pairs, "<u8", packed, width - 8, (width,))


def small(stream: CipherContext, count: int) -> Small:
    """Return the next `count` keys or errors of a stream, 16 bytes each: B - 42, B ~ Bin(84)."""
    coins = _words(stream, 2 * count).reshape(count, 2)
    coins[:, 1] &= np.uint64((1 << COINS - 64) - 1)
    heads = np.bitwise_count(coins).view("<u2").reshape(-1)
    # The sum of both bytes, which is below 256.
    heads += heads >> np.uint16(8)
    heads &= np.uint16(255)
    found = heads.astype(np.int64)
    found -= LARGEST
    return found


def public(stream: CipherContext, count: int) -> _Complex:
    """Return the next `count` public polynomials, shape (count, n), as digits ``low + 1j * high``.

    They are uniform modulo 2**52: ``low + 2**26 high``, both from -2**25 to 2**25 - 1.
    """
    words = _words(stream, count * RING_DIM).reshape(count, RING_DIM)
    digits = np.empty(words.shape, np.complex128)
    digits.real = words & np.uint64((1 << _DIGIT_BITS) - 1)
    words >>= np.uint64(_DIGIT_BITS)
    digits.imag = words & np.uint64((1 << _DIGIT_BITS) - 1)
    digits -= complex(1 << _DIGIT_BITS - 1, 1 << _DIGIT_BITS - 1)
    return digits


def _words(stream: CipherContext, count: int) -> Words:
    words = np.empty(count, "<u8")
    keystream.fill(stream, words.view(np.uint8))
    return words


class Key:
    """A key k, or a sum of keys, shape (n,), by which public polynomials are multiplied."""

    def __init__(self, key: Small) -> None:
        self._spectra: list[_Complex] = []
        half = 1 << _KEY_DIGIT_BITS - 1
        while key.any() or not self._spectra:
            digit = ((key + half) & (2 * half - 1)) - half
            self._spectra.append(np.fft.fft(digit * _TWIST))
            key = (key - digit) >> _KEY_DIGIT_BITS

    def products(self, digits: _Complex) -> Words:
        """Return polynomials times the key, shape (count, n); overwrites `digits`.

        Only the lowest 52 bits of a word are those of the product.
        """
        digits *= _TWIST
        spectra = np.fft.fft(digits, out=digits)
        total = None
        for place, spectrum in enumerate(self._spectra):
            last = place == len(self._spectra) - 1
            product = np.multiply(spectra, spectrum, out=spectra if last else None)
            np.fft.ifft(product, out=product)
            product *= _UNTWIST
            # Rounds to integers, which are then the lowest bits of the numbers' binary form.
            product += complex(_ROUNDER, _ROUNDER)
            rounded = product.view(np.int64).reshape(*digits.shape, 2)
            part = rounded[..., 1] << _DIGIT_BITS
            part += rounded[..., 0]
            part -= 1 << 51
            total = part if total is None else total + (part << place * _KEY_DIGIT_BITS)
        assert total is not None
        return total.view(np.uint64)


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
    multiplied = Key(key)
    for start in range(0, count, _AT_ONCE):
        some = min(_AT_ONCE, count - start)
        part = slice(start * RING_DIM, (start + some) * RING_DIM)
        yield part, multiplied.products(public(stream, some)).reshape(-1)
