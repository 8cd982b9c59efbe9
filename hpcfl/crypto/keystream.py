"""AES-128-CTR keystreams, the pseudo-random generator behind every mask and pattern.

A 16-byte key opens independent streams of up to 64 GiB: the first 12 bytes of the counter block are
the number of the stream, the last 4 count its 16-byte blocks from 2 (NIST SP 800-38A). AES-GCM
encrypts zeros to the same bytes (NIST SP 800-38D), faster on some processors.
Every key is used for one purpose only, so normally only stream 0 is read. The other streams hold
replacements for rejected words (see :mod:`hpcfl.crypto.groups`).
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

KEY_BYTES = 16
CIPHER_BYTES = 16  # block size of the cipher
TAG_BYTES = 16  # follow the keystream where one call of AES-GCM writes it
# One block's keystream, zero input and accumulators fit together in the L2 cache.
BLOCK_BYTES = 1 << 18
# The longest stream for which one call of AES-GCM is faster, even if its mode is the slower one.
SHORT_BYTES = 1 << 15

ZEROS = np.zeros(2 * BLOCK_BYTES, np.uint8)
ZEROS.flags.writeable = False
_NONCE_BYTES, _FIRST = 12, 2
_NONCE = bytes(_NONCE_BYTES)  # of stream 0


def open_stream(key: bytes, stream: int = 0, block: int = 0) -> CipherContext:
    """Return the encryptor that turns zeros into the keystream of a 16-byte key.

    It begins with the 16-byte block number `block`, below 2**32 - 2, of stream number `stream`.
    """
    if block or not gcm_is_faster():
        return counting(key, counter(block, stream))
    return _sealing(key, stream.to_bytes(_NONCE_BYTES, "big"))


def counter(block: int, stream: int = 0) -> bytes:
    """Return the counter block with which a stream continues at a block number."""
    return stream.to_bytes(_NONCE_BYTES, "big") + (_FIRST + block).to_bytes(4, "big")


def counting(key: bytes, counter: bytes) -> CipherContext:
    return Cipher(algorithms.AES128(key), modes.CTR(counter)).encryptor()


def _sealing(key: bytes, nonce: bytes) -> CipherContext:
    return Cipher(algorithms.AES128(key), modes.GCM(nonce)).encryptor()


@cache
def gcm_is_faster() -> bool:
    """Return whether this processor computes a keystream faster as part of AES-GCM.

    That depends on its vectors of 512 bits and on the version of OpenSSL, so it is tried once.
    """
    key, out, seconds = bytes(KEY_BYTES), np.empty(BLOCK_BYTES // 2, np.uint8), []
    for cipher in (counting(key, bytes(CIPHER_BYTES)), _sealing(key, _NONCE)):
        tried = partial(fill, cipher, out)
        seconds.append(min(timeit.repeat(tried, timer=time.thread_time, repeat=4, number=1)))
    return seconds[1] < 0.9 * seconds[0]  # so that ranks and launches with equal cores agree


def counts(size: int) -> bool:
    """Return whether compiled code, which only counts, is the fastest way to `size` bytes."""
    return size <= SHORT_BYTES or not gcm_is_faster()


def at_once(size: int) -> bool:
    """Return whether `beginner` is the fastest way to the first `size` bytes of a stream."""
    return size <= (ZEROS.size if gcm_is_faster() else SHORT_BYTES)


def fill(stream: CipherContext, out: NDArray[np.uint8]) -> None:
    """Write the next ``out.size`` bytes of `stream` to `out`, a contiguous array."""
    step = BLOCK_BYTES if out.size > ZEROS.size else ZEROS.size
    for start in range(0, out.size, step):
        part = out[start : start + step]
        stream.update_into(ZEROS[: part.size].data, part.data)


def bytes_per_second() -> float:
    """Return how much keystream this thread makes in a second of its CPU time, the median."""
    out, blocks = np.empty(BLOCK_BYTES, np.uint8), 256
    work = partial(fill, open_stream(bytes(KEY_BYTES)), out)
    seconds = sorted(timeit.repeat(work, timer=time.thread_time, repeat=7, number=blocks))
    return blocks * BLOCK_BYTES / seconds[3]


def filler(out: NDArray[np.uint8]) -> Callable[[CipherContext], object]:
    """Return a function that fills `out`, of at most ``ZEROS.size`` bytes, from a stream.

    For inner loops: it only makes the cipher's own call.
    """
    assert out.size <= ZEROS.size
    zeros, place = ZEROS[: out.size].data, out.data
    return lambda stream: stream.update_into(zeros, place)


def beginner(out: NDArray[np.uint8]) -> Callable[[AESGCM], object]:
    """Return a function that fills `out`, as `filler` does, with the beginning of stream 0.

    The last `TAG_BYTES` of `out` hold no keystream afterwards.
    """
    zeros, place = ZEROS[: out.size - TAG_BYTES].data, out.data
    return lambda cipher: cipher.encrypt_into(_NONCE, zeros, None, place)


def read(keys: Sequence[bytes], sizes: Sequence[int]) -> NDArray[np.uint8]:
    """Return the first ``sizes[k]`` bytes of stream 0 of ``keys[k]``, for all k, end to end."""
    out = np.empty(sum(sizes) + TAG_BYTES, np.uint8)
    start = 0
    for key, size in zip(keys, sizes, strict=True):
        if at_once(size):
            beginner(out[start : start + size + TAG_BYTES])(AESGCM(key))
        else:
            fill(open_stream(key), out[start : start + size])
        start += size
    return out[:start]
