"""Gaussian and Laplace noise for differential privacy, from secret bytes or from a plain generator.

Floating-point numbers are not the real numbers of a proof: the set of values that noise can take
may reveal the number it was added to (Mironov 2012, "On significance of the least significant bits
for differential privacy"). Here noise is made from 64-bit words and added in float64, and the sum
is rounded to float32 or integers. That hides most of the leak, but gives no proof;
:mod:`hpcfl.crypto.discrete_gaussian` has no such gap.
"""

from __future__ import annotations

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from hpcfl.crypto import keystream
from hpcfl.crypto.keys import SecretSource

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

# Words at a time: they and the numbers made from them stay in the cache.
_BLOCK = 1 << 13


class SecureNoise:
    """Noise from the keystream of a secret key, normally one from the operating system."""

    def __init__(self, secrets: SecretSource) -> None:
        self._stream = keystream.open_stream(secrets(keystream.KEY_BYTES))

    def gaussian(self, size: int, std: float) -> Floats:
        """Return fresh Gaussian noise of standard deviation `std`, shape (size,)."""
        out = np.empty(size + size % 2)
        for start in range(0, out.size, _BLOCK):
            block = out[start : start + _BLOCK]
            gaussian_of(uniform_words(self._stream, block.size), block)
        out *= std
        return out[:size]

    def laplace(self, size: int, scale: float) -> Floats:
        """Return fresh Laplace noise with mean absolute value `scale`, shape (size,)."""
        out = np.empty(size)
        for start in range(0, size, _BLOCK):
            block = out[start : start + _BLOCK]
            block[:] = laplace_of(uniform_words(self._stream, block.size))
        out *= scale
        return out


class FastNoise:
    """Noise from a plain generator: the seed determines it, so it protects nothing."""

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def gaussian(self, size: int, std: float) -> Floats:
        return self._generator.standard_normal(size) * std

    def laplace(self, size: int, scale: float) -> Floats:
        return self._generator.laplace(0.0, scale, size)


NoiseSource = SecureNoise | FastNoise


def uniform_words(stream: CipherContext, count: int) -> Words:
    """Return the next `count` uniform 64-bit words of a keystream."""
    raw = np.empty(8 * count, np.uint8)
    keystream.fill(stream, raw)
    return raw.view("<u8")


def gaussian_of(words: Words, out: Floats) -> None:
    """Write standard Gaussian numbers, made from an even number of uniform words, to `out`.

    Two words give two numbers (Box and Muller 1958): sqrt(-2 ln u) times cosine and sine of an
    angle. u is at least 2**-64, so numbers reach 9.4. NumPy vectorises the tangent t of half the
    angle: cosine and sine are (1 - t**2) / (1 + t**2) and 2 t / (1 + t**2).
    """
    half = words.size // 2
    # (word + 1) / 2**64 is above 0 and at most 1, so the logarithm is finite.
    radius = words[:half].astype(np.float64)
    radius += 1.0
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    # The signed word gives half the angle, -pi/2 to pi/2. Its float64 tangent is below 2e16.
    tangent = words[half:].view(np.int64).astype(np.float64)
    tangent *= 2.0**-64 * math.pi
    np.tan(tangent, out=tangent)
    square = tangent * tangent
    radius /= 1.0 + square
    np.subtract(1.0, square, out=square)
    np.multiply(square, radius, out=out[:half])
    tangent += tangent
    np.multiply(tangent, radius, out=out[half:])


def laplace_of(words: Words) -> Floats:
    """Return Laplace numbers of scale 1, one from each uniform word.

    The lowest bit gives the sign, the others give the magnitude -ln u, which reaches 43.7.
    """
    magnitude = (words >> np.uint64(1)).astype(np.float64)
    magnitude += 1.0
    magnitude *= 2.0**-63
    np.log(magnitude, out=magnitude)
    return np.where(words & np.uint64(1), magnitude, -magnitude)
