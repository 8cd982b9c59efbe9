"""Optional compiled code: the results of NumPy and `cryptography`, faster.

- ``kernel.c`` quantises vectors, adds masks to them, derives keys in batches, and multiplies
  polynomials. It calls OpenSSL as Python's hashlib does. Installing hpcfl compiles it if there is a
  compiler.
- lib25519, a library of the system, agrees on many keys at once. It must be where the linker looks:
  installed (Debian 13: ``lib25519-1``), or in a folder of ``LD_LIBRARY_PATH``.

Code that fails a known-answer test is not used. ``HPCFL_NATIVE=0`` in the environment disables all.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import keystream

Array = NDArray[Any]
Group = Any  # of hpcfl.crypto.groups, which imports this module
POINT_BYTES = 32
# RFC 7748, section 5.2, the second test vector: scalar, u-coordinate, and their product.
_KNOWN = (
    "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
    "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
    "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
)
# RFC 5869, test case 3: the secret, and the first bytes of the key without salt and context.
_KNOWN_SECRET, _KNOWN_KEY = b"\x0b" * 22, bytes.fromhex("8da4e775a563c18f715f802a063c5a31")


def wanted() -> bool:
    """Return whether compiled code may be used."""
    return os.environ.get("HPCFL_NATIVE") != "0"


def _kernel() -> ctypes.CDLL | None:
    """Return the library of ``kernel.c``, or None."""
    found = importlib.util.find_spec("hpcfl.crypto._kernel") if wanted() else None
    if found is not None and found.origin is not None:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(found.origin)
    return None


def function(name: str, *arguments: Any) -> Any:
    """Return a function of ``kernel.c`` that takes arguments of such types."""
    found = getattr(_kernel(), name)
    found.argtypes = arguments
    return found


def _openssl(*names: str) -> list[Any]:
    """Return functions of the OpenSSL that Python's hashlib uses."""
    import _hashlib

    openssl = ctypes.CDLL(_hashlib.__file__)
    return [getattr(openssl, name) for name in names]


def _places(functions: Iterable[Any]) -> ctypes.Array[ctypes.c_void_p]:
    """Return what `kernel.c` takes for a structure of pointers to functions."""
    places = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    return (ctypes.c_void_p * len(places))(*places)


class Masker:
    """Adds masks to vectors of a group in one pass; see ``kernel.c``."""

    def __init__(self) -> None:
        self._mask = function(
            *("hpcfl_mask", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
            *(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int),
        )
        self._masks = function(
            *("hpcfl_masks", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
            *(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
            *(ctypes.c_long, ctypes.c_long),
        )
        self._masks.restype = ctypes.c_long
        self.name = "the compiled kernel"
        # OpenSSL's AES, which `add` needs; None if it is out of reach.
        self.aes: ctypes.Array[ctypes.c_void_p] | None = None
        with contextlib.suppress(ImportError, OSError, AttributeError):
            *calls, mode, version = _openssl(
                *("EVP_CIPHER_CTX_new", "EVP_EncryptInit_ex", "EVP_EncryptUpdate"),
                *("EVP_CIPHER_CTX_free", "EVP_aes_128_ctr", "OpenSSL_version"),
            )
            mode.restype, version.restype = ctypes.c_void_p, ctypes.c_char_p
            self.aes = _places([*calls, mode()])
            self.name += f", {version(0).decode()}"

    def add(
        self, group: Group, vector: Array, keys: Sequence[bytes], signs: Sequence[int], first: int
    ) -> Iterator[int]:
        """Add the keystreams of keys from their 16-byte block number `first` on.

        Yield the number of each key whose keystream has rejected words.
        """
        minus, joined = bytes(sign < 0 for sign in signs), b"".join(keys)
        if len(joined) != keystream.KEY_BYTES * len(minus):
            raise ValueError(f"a key has {keystream.KEY_BYTES} bytes and a sign")
        given = *_given(group, vector), joined, keystream.counter(first), minus
        done, call = -1, partial(self._masks, self.aes, *given)
        while (done := call(done + 1, len(keys))) < len(keys):
            if done < 0:
                raise OSError("OpenSSL makes no keystreams")
            yield done

    def adder(self, group: Group, vector: Array, block: Array) -> Callable[[int], bool]:
        """Return a function that adds `block` with a sign, and says if words were rejected."""
        place, *others = _given(group, vector)
        call = partial(self._mask, place, block.ctypes.data, *others)
        return lambda sign: call(sign < 0) != 0


def _given(group: Group, vector: Array) -> tuple[int, ...]:
    # It may be a part of a message.
    if vector.dtype != group.dtype or not (vector.flags.c_contiguous and vector.flags.writeable):
        raise ValueError("masks are added to contiguous, writable vectors of the group's type")
    low = (1 << group.bits) - 1
    return vector.ctypes.data, vector.size, vector.itemsize, group.rejected, low


@cache
def masker() -> Masker | None:
    """Return what adds masks by ``kernel.c``, or None."""
    key, right = b"k" * 16, sys.byteorder == "little"
    try:
        found = Masker()
        for width, sign in itertools.product((1, 2, 4), (1, -1)):
            # Long enough for vector instructions, and for the pieces of `hpcfl_masks`.
            words = keystream.read([key], [5_000 * width]).view(f"<u{width}")
            q = (1 << 8 * width) - 5
            group = partial(SimpleNamespace, bits=8 * width, dtype=words.dtype)
            mask = words % q
            vector = mask[::-1].copy()
            expected = (vector + sign * mask.astype(np.int64)) % q
            right &= not found.adder(group(rejected=q), vector, mask)(sign)
            right &= np.array_equal(vector, expected)
            right &= found.adder(group(rejected=q), vector, words)(sign) == (words.max() >= q)
            if found.aes:
                right &= not [*found.add(group(rejected=0), words, [key], [-1], 0)]
                right &= not words.any()
    except (OSError, AttributeError):
        return None
    return found if right else None


class Rounder:
    """Quantises vectors to elements of a group in one pass; see ``kernel.c``."""

    def __init__(self) -> None:
        self._quantise = function(
            *("hpcfl_quantise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double),
            *(ctypes.c_double, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p),
        )
        self._quantise.restype = ctypes.c_long

    def quantise(
        self, values: Array, clip: float, scale: float, draws: Any, group: Group, out: Array
    ) -> int | None:
        """Write the elements of values to `out`; `draws` is NumPy's SFC64, which stays as it is.

        Return the number of clipped values, or None if it cannot, because one is not finite, or
        they are not contiguous floats of 32 or 64 bits.
        """
        known = values.dtype in (np.float32, np.float64) and values.shape == out.shape
        if not known or not values.flags.c_contiguous:
            return None
        place, size, width, *_ = _given(group, out)
        state = draws.state["state"]["state"]
        given = values.ctypes.data, size, values.itemsize, clip, scale, state.ctypes.data
        clipped: int = self._quantise(*given, group.modulus % 2**32, width, place)
        return None if clipped < 0 else clipped


@cache
def rounder() -> Rounder | None:
    """Return what quantises by ``kernel.c``, or None."""
    right = sys.byteorder == "little"
    try:
        found = Rounder()
        for width, dtype in itertools.product((1, 2, 4), (np.float32, np.float64)):
            # Long enough for several blocks; some values are clipped.
            values, draws = np.linspace(-60, 60, 1_001, dtype=dtype), np.random.SFC64(width)
            words, q = np.empty(values.size, f"<u{width}"), (1 << 8 * width) - 5
            group = SimpleNamespace(bits=8 * width, dtype=words.dtype, modulus=q, rejected=0)
            cut = found.quantise(values, 50.5, 1.7, draws, group, words)
            scaled = 1.7 * np.clip(values.astype(np.float64), -50.5, 50.5)
            whole = np.floor(np.random.Generator(draws).random(values.size) + scaled)
            right &= cut == np.count_nonzero(np.abs(values) > 50.5)
            right &= np.array_equal(words, whole % q)
    except (OSError, AttributeError):
        return None
    return found if right else None


class Deriver:
    """Keys derived by HKDF-SHA256 in batches, without a Python object for each."""

    LONGEST = 32  # length of a key in bytes

    def __init__(self) -> None:
        self._hash = _places(_openssl("SHA256_Init", "SHA256_Update", "SHA256_Final"))
        self._derive = function(
            *("hpcfl_derive", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p),
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p),
        )

    def derive(self, secrets: Sequence[bytes], contexts: Sequence[bytes], length: int) -> bytes:
        """Return the keys for some contexts, end to end, from secrets of the same length."""
        if len({*map(len, secrets)}) > 1 or len(contexts) != len(secrets) or length > self.LONGEST:
            raise ValueError("secrets have one length and a context each")
        derived = ctypes.create_string_buffer(length * len(secrets))
        ends = np.cumsum([len(context) for context in contexts], dtype=np.uint64)
        if not self._derive(
            *(self._hash, b"".join(secrets), len(secrets[0]), b"".join(contexts)),
            *(ends.ctypes.data, len(secrets), length, derived),
        ):
            raise OSError("OpenSSL computes no hashes")
        return derived.raw


@cache
def deriver() -> Deriver | None:
    """Return what derives keys by ``kernel.c``, or None."""
    try:
        found = Deriver()
        derived = found.derive([_KNOWN_SECRET] * 2, [b""] * 2, len(_KNOWN_KEY))
    except (ImportError, OSError, AttributeError):
        return None
    return found if derived == _KNOWN_KEY * 2 else None


class Lib25519:
    """Key agreements in batches, without a Python object for each key."""

    def __init__(self) -> None:
        library = ctypes.CDLL("lib25519.so.1")
        name = library.lib25519_nPbatch_montgomery25519_implementation
        name.restype = ctypes.c_char_p
        self.name: str = f"lib25519 {name().decode()}"
        self._multiply = library.lib25519_nPbatch_montgomery25519
        self._multiply.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_longlong]
        self._multiply.restype = None

    def multiply(self, scalar: bytes, points: bytes) -> bytes:
        """Return the products of a scalar and u-coordinates of 32 bytes each (RFC 7748)."""
        count, more = divmod(len(points), POINT_BYTES)
        if more or len(scalar) != POINT_BYTES:
            raise ValueError(f"a key has {POINT_BYTES} bytes")
        products = ctypes.create_string_buffer(len(points))
        self._multiply(products, scalar * count, points, count)
        return products.raw


@cache
def lib25519() -> Lib25519 | None:
    """Return the library, or None."""
    try:
        library = Lib25519() if wanted() else None
    except (OSError, AttributeError):
        return None
    scalar, point, product = (bytes.fromhex(each) for each in _KNOWN)
    known = library is not None and library.multiply(scalar, point * 17) == product * 17
    return library if known else None


def facts() -> dict[str, str]:
    """Return the names of the code for masks, key derivation and agreements, for results files.

    A call may still use NumPy or `cryptography` where they are faster. The first call loads and
    tests the code, so make it before a round is timed.
    """
    kernel, library = masker(), lib25519()
    rounder()
    return {
        "keystream_mode": "AES-GCM" if keystream.gcm_is_faster() else "AES-CTR",
        "masks_added_by": "NumPy" if kernel is None else kernel.name,
        "keys_derived_by": "cryptography" if deriver() is None else "the compiled kernel",
        "keys_agreed_by": "cryptography" if library is None else library.name,
    }
