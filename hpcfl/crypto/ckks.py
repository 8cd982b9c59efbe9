"""Vectors of real numbers that are added encrypted: CKKS (Cheon et al., ASIACRYPT 2017).

Through TenSEAL, an optional extra (``pip install hpcfl[ckks]``), which binds Microsoft SEAL.
Parameters are those that NVFlare gives its users: ring of degree 8192, primes of 60, 40 and 40
bits, scale 2^40; by the tables of the Homomorphic Encryption Standard that is 128 bits of security.
Encryption is symmetric: the key that decrypts encrypts. TenSEAL's randomness is the operating
system's.

A vector is cut into blocks of `SLOTS` values, one ciphertext each: behind its size as u32, as
SEAL writes it, compressed, so that sizes differ by some bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import MissingPackageError

DEGREE, PRIME_BITS, SCALE_BITS = 8192, (60, 40, 40), 40
SLOTS = DEGREE // 2
# Of a ciphertext as it is written: at most two polynomials modulo two primes in words, and what
# compression leaves of that.
LARGEST_BYTES = 2 * DEGREE * 2 * 8 + 1024
TYPICAL_BYTES = 234_800
# SEAL's error of a fresh ciphertext has this standard deviation a coefficient, a rounded Gaussian
# cut off at six of them; to encode rounds a coefficient besides.
_ERROR_VARIANCE = 3.2**2 + 0.25
# What float64 loses while a block is encoded and decoded, relative to its largest value.
_RELATIVE = 2.0**-44
_SAVED = {"save_public_key": False, "save_galois_keys": False, "save_relin_keys": False}


def library() -> Any:
    """Return TenSEAL; UsageError if it is not installed."""
    try:
        import tenseal
    except ImportError as error:
        raise MissingPackageError("ckks", "TenSEAL", "ckks") from error
    return tenseal


class Context:
    """Parameters and a secret key; who only adds has another one, which opens nothing."""

    def __init__(self, content: bytes | None = None) -> None:
        """Make a new secret key, or read what `written` gave; ValueError if it is none."""
        self._library = library()
        if content is None:
            kind = self._library.ENCRYPTION_TYPE.SYMMETRIC
            scheme = self._library.SCHEME_TYPE.CKKS
            self._context = self._library.context(scheme, DEGREE, -1, [*PRIME_BITS], kind)
            self._context.global_scale = 2.0**SCALE_BITS
            return
        try:
            self._context = self._library.context_from(content)
        except Exception as error:  # of SEAL, of several kinds
            raise ValueError("it is no context of CKKS") from error

    def written(self) -> bytes:
        """Return the secret key, with its parameters, as bytes."""
        return bytes(self._context.serialize(save_secret_key=True, **_SAVED))

    def encrypt(self, values: NDArray[np.floating]) -> bytes:
        """Return a vector encrypted; ValueError if a value is too large for the modulus."""
        parts = (values[start : start + SLOTS] for start in range(0, values.size, SLOTS))
        return _end_to_end(
            self._library.ckks_vector(self._context, part.tolist()).serialize() for part in parts
        )

    def decrypt(self, content: bytes, size: int) -> NDArray[np.float64]:
        """Return the vector of so many values; ValueError if the bytes are none."""
        return np.concatenate([np.array(one.decrypt()) for one in self._read(content, size)])

    def add(self, total: list[Any], content: bytes, size: int) -> list[Any]:
        """Return the sum of an encrypted vector and `total`, [] for none; ValueError likewise."""
        read = self._read(content, size)
        if not total:
            return read
        try:
            return [one + other for one, other in zip(total, read, strict=True)]
        except Exception as error:
            raise ValueError("it is encrypted with other parameters") from error

    @staticmethod
    def summed(total: list[Any]) -> bytes:
        """Return a sum as it is sent."""
        return _end_to_end(one.serialize() for one in total)

    def _read(self, content: bytes, size: int) -> list[Any]:
        found = []
        place = 0
        for start in range(0, size, SLOTS):
            stop = place + 4 + int.from_bytes(content[place : place + 4], "little")
            if not place + 4 < stop <= len(content):
                raise ValueError("a ciphertext is cut off")
            try:
                one = self._library.ckks_vector_from(self._context, content[place + 4 : stop])
            except Exception as error:
                raise ValueError("it is no ciphertext of CKKS") from error
            if one.size() != min(SLOTS, size - start):
                raise ValueError(f"a ciphertext holds {one.size()} values")
            found.append(one)
            place = stop
        if place != len(content):
            raise ValueError("there are bytes behind the last ciphertext")
        return found


def _end_to_end(ciphertexts: Iterator[bytes]) -> bytes:
    return b"".join(len(one).to_bytes(4, "little") + one for one in ciphertexts)


def blocks(size: int) -> int:
    """Return the number of ciphertexts of so many values."""
    return -(-size // SLOTS)


def error_bound(vectors: int, size: int, largest: float, failure: float) -> float:
    """Return what a sum of encrypted vectors is off by at any value, except with a probability.

    A decrypted value is the real part of its block's polynomial at a root of unity: a sum of
    `DEGREE` coefficients times cosines, whose errors are independent and sub-Gaussian with at most
    the variance `_ERROR_VARIANCE` each. No value's magnitude, nor its sum's, is above `largest`.
    """
    variance = DEGREE * vectors * _ERROR_VARIANCE
    tail = math.sqrt(2 * variance * math.log(2 * size / failure))
    return tail / 2.0**SCALE_BITS + _RELATIVE * vectors * largest
