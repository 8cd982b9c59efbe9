"""Homomorphic addition of encrypted vectors with CKKS (Cheon et al., ASIACRYPT 2017).

The implementation is TenSEAL, an optional extra (``pip install hpcfl[ckks]``) that binds Microsoft
SEAL. The parameters are NVFlare's defaults: ring degree 8192, primes of 60, 40 and 40 bits and
scale 2^40, which the Homomorphic Encryption Standard rates at 128 bits of security. Encryption is
symmetric: one secret key encrypts and decrypts. TenSEAL takes its randomness from the operating
system.

CKKS is approximate: decryption adds an error that is linear in the key. A party that adds
ciphertexts and learns the decrypted sums could solve for the key from two ciphertexts of this size
(Li and Micciancio, EUROCRYPT 2021). Vectors are therefore rounded to multiples of a step before
encryption and again after decryption. The error is always below half a step (the tests have the
bound), so sums are exact and the published result contains no trace of the error.

A vector is cut into blocks of `SLOTS` values, one ciphertext each. A ciphertext is sent as its size
(u32) and SEAL's compressed output, whose length varies by a few bytes. The reader rebuilds the
TenSEAL wrapper, because a received one would say how many ciphertexts to look for in memory. SEAL
inflates any input, so the compressed bytes are checked first (`_checked`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import MissingPackageError

DEGREE, PRIME_BITS, SCALE_BITS = 8192, (60, 40, 40), 40
SLOTS = DEGREE // 2
# A value is sent as a multiple of 2^-STEP_BITS. The error is below half a step as long as a sum
# stays within `LARGEST` and has at most `MOST_VECTORS` vectors.
STEP_BITS = 28
LARGEST = 2**9
MOST_VECTORS = 2**20
# A ciphertext before compression: two polynomials modulo two primes, in words, and metadata.
_POLYNOMIALS, _PRIMES = 2, 2
_INFLATED = _POLYNOMIALS * DEGREE * _PRIMES * 8 + 97
_INFLATED_KEY = DEGREE * len(PRIME_BITS) * 8 + 72
# Sizes on the wire: upper bounds (data may not compress), and the usual size of a ciphertext.
LARGEST_BYTES = _INFLATED + 1024
LARGEST_KEY_BYTES = _INFLATED_KEY + 1024
TYPICAL_BYTES = 235_055
# The start of SEAL's 16-byte header; the bytes behind its version: zstd, then two zeros.
_MAGIC, _ZSTD = b"\x5e\xa1\x10", b"\x02\x00\x00"
# The start of a single-segment zstd frame, whose content size follows as u32 (RFC 8878).
_FRAME = b"\x28\xb5\x2f\xfd\xa0"
# SEAL's frames have four blocks. A block inflates to at most 128 KiB.
_MOST_BLOCKS = 16
_SAVED = {"save_public_key": False, "save_galois_keys": False, "save_relin_keys": False}


def library() -> Any:
    """Return the TenSEAL module; raise UsageError if it is not installed."""
    try:
        import tenseal
    except ImportError as error:
        raise MissingPackageError("ckks", "TenSEAL", "ckks") from error
    return tenseal


class Context:
    """The parameters and a secret key; a party that only adds has a key that decrypts nothing."""

    def __init__(self, secret: bytes | None = None) -> None:
        """Make a new secret key, or read one from `written`; raise ValueError if it is invalid."""
        self._library = library()
        if secret is None:
            self._context = _new()
            return
        content = _parameters() + _field(3, _field(1, _checked(secret, _INFLATED_KEY)))
        try:
            self._context = self._library.context_from(content, n_threads=1)
        except Exception as error:  # SEAL raises several types
            raise ValueError("it is not a CKKS key") from error

    def written(self) -> bytes:
        """Return the secret key in SEAL's format."""
        _, secret = _objects(self._context.serialize(save_secret_key=True, **_SAVED))
        return secret

    def encrypt(self, values: NDArray[np.floating]) -> bytes:
        """Return a vector rounded to steps and encrypted; ValueError if a value is too large."""
        if np.abs(values).max(initial=0) > LARGEST:
            raise ValueError(f"a value is beyond {LARGEST}")
        parts = (values[start : start + SLOTS] for start in range(0, values.size, SLOTS))
        return _end_to_end(
            self._library.ckks_vector(self._context, in_steps(part).tolist()) for part in parts
        )

    def decrypt(self, content: bytes, size: int) -> NDArray[np.int64]:
        """Return the decrypted vector of `size` values, in steps.

        Raise ValueError if the bytes are not such a ciphertext. Raise OverflowError if a value is
        too large: a sum of vectors under other keys decrypts to arbitrary values.
        """
        decoded = self.decoded(content, size)
        # Twice `LARGEST` leaves room for the rounding of up to half a step per vector.
        if not np.abs(decoded).max(initial=0) <= 2 * LARGEST * 2**STEP_BITS:
            raise OverflowError("it decrypts to values that are too large")
        return np.rint(decoded).astype(np.int64)

    def decoded(self, content: bytes, size: int) -> NDArray[np.float64]:
        """Return the decrypted vector with its error, which must stay secret."""
        read = self._read(content, size)
        try:
            return np.concatenate([np.array(one.decrypt()) for one in read])
        except Exception as error:
            raise ValueError("it does not decrypt") from error

    def add(self, total: list[Any], content: bytes, size: int) -> list[Any]:
        """Return `total` (empty for zero) plus an encrypted vector; ValueError as in `decrypt`."""
        read = self._read(content, size)
        if not total:
            return read
        try:
            return [one + other for one, other in zip(total, read, strict=True)]
        except Exception as error:
            raise ValueError("it cannot be added to the others") from error

    @staticmethod
    def summed(total: list[Any]) -> bytes:
        """Return a sum in its wire format."""
        return _end_to_end(iter(total))

    def _read(self, content: bytes, size: int) -> list[Any]:
        found = []
        place = 0
        for start in range(0, size, SLOTS):
            stop = place + 4 + int.from_bytes(content[place : place + 4], "little")
            if not place + 4 < stop <= len(content):
                raise ValueError("a ciphertext is cut off")
            found.append(self._read_one(content[place + 4 : stop], min(SLOTS, size - start)))
            place = stop
        if place != len(content):
            raise ValueError("there are bytes behind the last ciphertext")
        return found

    def _read_one(self, content: bytes, size: int) -> Any:
        scale = b"\x19" + struct.pack("<d", 2.0**SCALE_BITS)
        wrapped = _field(1, _varint(size)) + _field(2, _checked(content, _INFLATED)) + scale
        try:
            one = self._library.ckks_vector_from(self._context, wrapped)
            (held,) = one.ciphertext()
        except Exception as error:
            raise ValueError("it is not a CKKS ciphertext") from error
        # SEAL has checked the degree and the primes, but accepts fewer primes, more polynomials and
        # any scale. If the first ciphertext had them, no other could be added to it.
        found = (held.size(), held.coeff_modulus_size(), held.scale, held.is_ntt_form())
        if found != (_POLYNOMIALS, _PRIMES, 2.0**SCALE_BITS, True):
            raise ValueError("it is a ciphertext of another form")
        return one


def _new() -> Any:
    kind, scheme = library().ENCRYPTION_TYPE.SYMMETRIC, library().SCHEME_TYPE.CKKS
    context = library().context(scheme, DEGREE, -1, [*PRIME_BITS], kind, n_threads=1)
    context.global_scale = 2.0**SCALE_BITS
    return context


@cache
def _parameters() -> bytes:
    """Return a context without a key in TenSEAL's format."""
    return bytes(_new().serialize(save_secret_key=False, **_SAVED))


def _end_to_end(vectors: Iterator[Any]) -> bytes:
    written = [content for one in vectors for content in _objects(one.serialize())]
    return b"".join(len(one).to_bytes(4, "little") + one for one in written)


def _objects(written: bytes) -> list[bytes]:
    """Return the SEAL objects in TenSEAL's output, in order."""
    found = []
    place = written.find(_MAGIC)
    while place >= 0:
        stop = place + int.from_bytes(written[place + 8 : place + 16], "little")
        found.append(written[place:stop])
        place = written.find(_MAGIC, stop)
    return found


def _checked(content: bytes, inflated: int) -> bytes:
    """Return `content` if SEAL can safely read it, else raise ValueError.

    It must be one compressed frame that declares `inflated` bytes, and has at most `_MOST_BLOCKS`
    blocks, because a block of a few bytes can inflate to 128 KiB.
    """
    header, frame = content[:16], content[16:]
    begins = header[:3] == _MAGIC and header[5:8] == _ZSTD
    if not begins or int.from_bytes(header[8:], "little") != len(content):
        raise ValueError("it is not a CKKS ciphertext: it has another header")
    if frame[:9] != _FRAME + inflated.to_bytes(4, "little"):
        raise ValueError("it is not a CKKS ciphertext: it is compressed in another way")
    place, last = 9, 0
    for _ in range(_MOST_BLOCKS):
        block = int.from_bytes(frame[place : place + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        place += 3 + (1 if kind == 1 else size)  # kind 1 repeats one byte
        if last or place >= len(frame):
            break
    if not last or place != len(frame):
        raise ValueError("it is not a CKKS ciphertext: it is cut off, or inflates to more")
    return content


def _field(number: int, content: bytes) -> bytes:
    """Return a protocol-buffer field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def in_steps(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return values in steps, rounded to whole steps."""
    return np.rint(np.ldexp(values.astype(np.float64), STEP_BITS))


def from_steps(steps: NDArray[Any]) -> NDArray[np.float64]:
    """Return the values of numbers of steps."""
    return np.ldexp(steps.astype(np.float64), -STEP_BITS)


def blocks(size: int) -> int:
    """Return the number of ciphertexts for `size` values."""
    return -(-size // SLOTS)
