"""AES-128-CTR keystreams, the pseudo-random generator behind every mask and pattern.

A 16-byte key opens 2**64 independent streams of 2**64 blocks: the upper half of the counter block
is the number of the stream, the lower half counts the 16-byte blocks within it (NIST SP 800-38A).
Every key is used for one purpose only, so normally only stream 0 is read. The other streams hold
replacements for rejected words (see :mod:`hpcfl.crypto.groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES = 16
CIPHER_BYTES = 16  # block size of the cipher
# One block's keystream, zero input and accumulators fit together in a 1 MiB L2 cache.
BLOCK_BYTES = 1 << 17

ZEROS = np.zeros(4 * BLOCK_BYTES, np.uint8)
ZEROS.flags.writeable = False


def open_stream(key: bytes, stream: int = 0, block: int = 0) -> CipherContext:
    """Return the encryptor that turns zeros into the keystream of a 16-byte key.

    It begins with the 16-byte block number `block` of stream number `stream`, both below 2**64.
    """
    counter = stream.to_bytes(8, "big") + block.to_bytes(8, "big")
    return Cipher(algorithms.AES128(key), modes.CTR(counter)).encryptor()


def fill(stream: CipherContext, out: NDArray[np.uint8]) -> None:
    """Write the next ``out.size`` bytes of `stream` to `out`, a contiguous array."""
    step = BLOCK_BYTES if out.size > ZEROS.size else ZEROS.size
    for start in range(0, out.size, step):
        part = out[start : start + step]
        stream.update_into(ZEROS[: part.size].data, part.data)


def filler(out: NDArray[np.uint8]) -> Callable[[CipherContext], object]:
    """Return a function that fills `out`, of at most ``ZEROS.size`` bytes, from a stream.

    For inner loops: it only makes the cipher's own call.
    """
    assert out.size <= ZEROS.size
    zeros, place = ZEROS[: out.size].data, out.data
    return lambda stream: stream.update_into(zeros, place)


def read(keys: Sequence[bytes], sizes: Sequence[int]) -> NDArray[np.uint8]:
    """Return the first ``sizes[k]`` bytes of stream 0 of ``keys[k]``, for all k, end to end."""
    out = np.empty(sum(sizes), np.uint8)
    start = 0
    for key, size in zip(keys, sizes, strict=True):
        fill(open_stream(key), out[start : start + size])
        start += size
    return out
