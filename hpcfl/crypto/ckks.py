"""Vectors that are added encrypted: CKKS (Cheon et al., ASIACRYPT 2017).

Through TenSEAL, an optional extra (``pip install hpcfl[ckks]``), which binds Microsoft SEAL.
Parameters are those that NVFlare gives its users: ring of degree 8192, primes of 60, 40 and 40
bits, scale 2^40; by the tables of the Homomorphic Encryption Standard that is 128 bits of security.
Encryption is symmetric: the key that decrypts encrypts. TenSEAL's randomness is the operating
system's.

CKKS is approximate: what is decrypted has an error, which is linear in the key. Who adds
ciphertexts and is told what sums decrypt to could solve for the key (Li and Micciancio, EUROCRYPT
2021), from two ciphertexts of this size. So vectors are rounded to multiples of a step, and so is
what is decrypted: the error is always less than half a step (the tests have the bound), sums are
exact, and nothing of it is left in what is told.

A vector is cut into blocks of `SLOTS` values, one ciphertext each: behind its size as u32, as
SEAL writes it, compressed, so that sizes differ by some bytes. What TenSEAL wraps around it is
made anew by who reads: it would say how many ciphertexts to look for in memory. SEAL inflates
whatever it is given, so what is compressed is looked at before (`_checked`).
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
# A value is sent as a multiple of 2^-STEP_BITS. With none of a sum beyond `LARGEST`, and no more
# vectors in it than `MOST_VECTORS`, the error is less than half of that.
STEP_BITS = 28
LARGEST = 2**9
MOST_VECTORS = 2**20
# A ciphertext before compression: two polynomials modulo two primes in words, and what they are.
_POLYNOMIALS, _PRIMES = 2, 2
_INFLATED = _POLYNOMIALS * DEGREE * _PRIMES * 8 + 97
_INFLATED_KEY = DEGREE * len(PRIME_BITS) * 8 + 72
# On the wire at most (compression may fail), and as a rule.
LARGEST_BYTES = _INFLATED + 1024
LARGEST_KEY_BYTES = _INFLATED_KEY + 1024
TYPICAL_BYTES = 235_055
# SEAL's header of 16 bytes begins so; the bytes that follow the version say zstd, and nothing.
_MAGIC, _ZSTD = b"\x5e\xa1\x10", b"\x02\x00\x00"
# A frame of zstd begins so, if it is one piece whose size follows as u32 (RFC 8878).
_FRAME = b"\x28\xb5\x2f\xfd\xa0"
# SEAL's has four blocks, none of which inflates to more than 128 KiB.
_MOST_BLOCKS = 16
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

    def __init__(self, secret: bytes | None = None) -> None:
        """Make a new secret key, or read what `written` gave; ValueError if it is none."""
        self._library = library()
        if secret is None:
            self._context = _new()
            return
        content = _parameters() + _field(3, _field(1, _checked(secret, _INFLATED_KEY)))
        try:
            self._context = self._library.context_from(content, n_threads=1)
        except Exception as error:  # of SEAL, of several kinds
            raise ValueError("it is no key of CKKS") from error

    def written(self) -> bytes:
        """Return the secret key as SEAL writes it."""
        _, secret = _objects(self._context.serialize(save_secret_key=True, **_SAVED))
        return secret

    def encrypt(self, values: NDArray[np.floating]) -> bytes:
        """Return a vector encrypted, rounded to steps; ValueError if a value is too large."""
        if np.abs(values).max(initial=0) > LARGEST:
            raise ValueError(f"a value is beyond {LARGEST}")
        parts = (values[start : start + SLOTS] for start in range(0, values.size, SLOTS))
        return _end_to_end(
            self._library.ckks_vector(self._context, in_steps(part).tolist()) for part in parts
        )

    def decrypt(self, content: bytes, size: int) -> NDArray[np.int64]:
        """Return the vector of so many values, in steps; ValueError if the bytes are none.

        OverflowError if a value is too large: what is not the sum of vectors that were encrypted
        by this key decrypts to anything.
        """
        decoded = self.decoded(content, size)
        # Of vectors that are within the bounds, rounded to steps, up to half a step each.
        if not np.abs(decoded).max(initial=0) <= 2 * LARGEST * 2**STEP_BITS:
            raise OverflowError("it decrypts to values that are too large")
        return np.rint(decoded).astype(np.int64)

    def decoded(self, content: bytes, size: int) -> NDArray[np.float64]:
        """Return the same with its error, of which nobody must be told anything."""
        read = self._read(content, size)
        try:
            return np.concatenate([np.array(one.decrypt()) for one in read])
        except Exception as error:
            raise ValueError("it does not decrypt") from error

    def add(self, total: list[Any], content: bytes, size: int) -> list[Any]:
        """Return the sum of an encrypted vector and `total`, [] for none; ValueError likewise."""
        read = self._read(content, size)
        if not total:
            return read
        try:
            return [one + other for one, other in zip(total, read, strict=True)]
        except Exception as error:
            raise ValueError("it cannot be added to the others") from error

    @staticmethod
    def summed(total: list[Any]) -> bytes:
        """Return a sum as it is sent."""
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
            raise ValueError("it is no ciphertext of CKKS") from error
        # SEAL has seen to the degree and the primes, but takes fewer primes, more polynomials and
        # any scale: the first such would make all others unfit to be added to it.
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
    """Return a context without a key, as TenSEAL writes it."""
    return bytes(_new().serialize(save_secret_key=False, **_SAVED))


def _end_to_end(vectors: Iterator[Any]) -> bytes:
    written = [content for one in vectors for content in _objects(one.serialize())]
    return b"".join(len(one).to_bytes(4, "little") + one for one in written)


def _objects(written: bytes) -> list[bytes]:
    """Return what SEAL has written in what TenSEAL wrote."""
    found = []
    place = written.find(_MAGIC)
    while place >= 0:
        stop = place + int.from_bytes(written[place + 8 : place + 16], "little")
        found.append(written[place:stop])
        place = written.find(_MAGIC, stop)
    return found


def _checked(content: bytes, inflated: int) -> bytes:
    """Return what SEAL can read without harm.

    ValueError unless it is one compressed frame that says it inflates to so many bytes, and does
    not have many more blocks than that takes: a few bytes can inflate to 128 KiB.
    """
    header, frame = content[:16], content[16:]
    begins = header[:3] == _MAGIC and header[5:8] == _ZSTD
    if not begins or int.from_bytes(header[8:], "little") != len(content):
        raise ValueError("it is no ciphertext of CKKS: it has another header")
    if frame[:9] != _FRAME + inflated.to_bytes(4, "little"):
        raise ValueError("it is no ciphertext of CKKS: it is compressed in another way")
    place, last = 9, 0
    for _ in range(_MOST_BLOCKS):
        block = int.from_bytes(frame[place : place + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        place += 3 + (1 if kind == 1 else size)  # kind 1 repeats one byte
        if last or place >= len(frame):
            break
    if not last or place != len(frame):
        raise ValueError("it is no ciphertext of CKKS: it is cut off, or inflates to more")
    return content


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as protocol buffers have it."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def in_steps(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the numbers of steps that values are rounded to."""
    return np.rint(np.ldexp(values.astype(np.float64), STEP_BITS))


def from_steps(steps: NDArray[Any]) -> NDArray[np.float64]:
    """Return the values that numbers of steps stand for."""
    return np.ldexp(steps.astype(np.float64), -STEP_BITS)


def blocks(size: int) -> int:
    """Return the number of ciphertexts of so many values."""
    return -(-size // SLOTS)
