"""Gaussian and Laplace noise for differential privacy, from secret bytes or from a plain generator.

Real numbers as computers have them are not the real numbers of a proof: which floating-point
numbers noise can take may tell what it was added to (Mironov 2012, "On significance of the least
significant bits for differential privacy"). Noise here is made of 64-bit words and added in float64
to numbers that are then rounded to float32 or integers, which hides most of that but proves
nothing; :mod:`hpcfl.crypto.discrete_gaussian` has no such gap.
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

# Words at a time: they and what is made of them stay in the cache.
_BLOCK = 1 << 13


class SecureNoise:
    """Noise from the keystream of a secret key, which normally the operating system gives."""

    def __init__(self, secrets: SecretSource) -> None:
        self._stream = keystream.open_stream(secrets(keystream.KEY_BYTES))

    def gaussian(self, size: int, std: float) -> Floats:
        """Return Gaussian noise of a standard deviation, other numbers at every call."""
        out = np.empty(size + size % 2)
        for start in range(0, out.size, _BLOCK):
            block = out[start : start + _BLOCK]
            gaussian_of(uniform_words(self._stream, block.size), block)
        out *= std
        return out[:size]

    def laplace(self, size: int, scale: float) -> Floats:
        """Return Laplace noise of a scale, its mean absolute value."""
        out = np.empty(size)
        for start in range(0, size, _BLOCK):
            block = out[start : start + _BLOCK]
            block[:] = laplace_of(uniform_words(self._stream, block.size))
        out *= scale
        return out


class FastNoise:
    """The same from a plain generator: it repeats itself for a seed, and hides from nobody."""

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
    """Write the standard Gaussian numbers that an even number of uniform words stand for.

    Two words give two numbers (Box and Muller 1958): sqrt(-2 ln u) times cosine and sine of an
    angle. As u is as small as 2**-64, numbers reach to 9.4. Cosine and sine come from the tangent
    of half the angle, which NumPy vectorises, as (1 - t**2) / (1 + t**2) and 2 t / (1 + t**2).
    """
    half = words.size // 2
    # (word + 1) / 2**64 is above 0 and at most 1: no logarithm is infinite.
    radius = words[:half].astype(np.float64)
    radius += 1.0
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    # As a signed word, half the angle is from -pi/2 to pi/2; its float64 tangent is below 2e16.
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
    """Return the Laplace numbers of scale 1 that uniform words stand for.

    The lowest bit is the sign, the others the magnitude -ln u, which reaches to 43.7.
    """
    magnitude = (words >> np.uint64(1)).astype(np.float64)
    magnitude += 1.0
    magnitude *= 2.0**-63
    np.log(magnitude, out=magnitude)
    return np.where(words & np.uint64(1), magnitude, -magnitude)
