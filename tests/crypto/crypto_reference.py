"""Slow, independent versions of what `hpcfl.crypto` computes, and a test of distributions.

All keys here are fixed: a test of a distribution that passes once passes always. Its level is the
probability of a false alarm if the keys, or the order in which they are read, ever change. There
are fewer than 100 such tests, so all of them together raise one with a probability below 1e-6.
"""

import bisect
import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

LEVEL = 1e-8


def fixed_keys(count, seed=0):
    """Return `count` 16-byte keys, always the same."""
    return [hashlib.sha256(f"{seed} {key}".encode()).digest()[:16] for key in range(count)]


def stream_bytes(key, count, stream=0, block=0):
    """Return keystream bytes made without a counter mode: every counter block is encrypted."""
    blocks = -(-count // 16)
    counters = np.zeros((blocks, 4), ">u4")
    counters[:, 2] = stream
    counters[:, 3] = np.arange(blocks) + 2 + block
    cipher = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
    return cipher.update(counters.tobytes())[:count]


def group_elements(key, count, group):
    """Return the first elements of a key.

    The lowest bits of the narrowest words of 8, 16 or 32 bits that hold them. In a field at each
    position those of the first of the key's streams that are below the modulus.
    """
    modulus = group.modulus
    width = next(size for size in (1, 2, 4) if group.bits <= 8 * size)
    found = np.full(count, -1, np.int64)
    stream = 0
    while (missing := found < 0).any():
        words = np.frombuffer(stream_bytes(key, width * count, stream), f"<u{width}")
        words = words.astype(np.int64) % 2**group.bits
        found[missing] = np.where(words < modulus, words, -1)[missing]
        stream += 1
    return found.tolist()


def exact_thresholds(probability, reach):
    """Return ``floor(2**64 (1 - probability)**g)`` for g from `reach` down to 1."""
    stay = 1 - probability
    top, bottom = 1 << 64, 1
    thresholds = []
    for _ in range(reach):
        top, bottom = top * stay.numerator, bottom * stay.denominator
        thresholds.append(top // bottom)
    return thresholds[::-1]


def gap_of(word, thresholds):
    """Return 1 plus the number of increasing `thresholds` that are above `word`."""
    return 1 + len(thresholds) - bisect.bisect_right(thresholds, word)


def select_by_gaps(key, dim, thresholds):
    """Return the selected coordinates, one 64-bit word after the other, as the definition says."""
    selected, reached = [], 0
    words = _words64(key)
    while reached < dim:
        gap = gap_of(next(words), thresholds)
        reached += min(gap, len(thresholds))
        if gap <= len(thresholds) and reached <= dim:
            selected.append(reached - 1)
    return selected


def _words64(key):
    block = 0
    while True:
        raw = stream_bytes(key, 1 << 12, block=block)
        yield from np.frombuffer(raw, "<u8").tolist()
        block += 1 << 8


def assert_fits(counts, probabilities):
    """Assert that `counts` of categories fit their `probabilities` (chi-square at `LEVEL`)."""
    observed, expected = np.asarray(counts), np.asarray(probabilities, np.float64)
    expected = expected / expected.sum() * observed.sum()
    assert expected.min() > 50, "too few for the chi-square approximation"
    assert stats.chisquare(observed, expected).pvalue > LEVEL


def assert_uniform(values, modulus, bins=256):
    """Assert that integers are uniform below `modulus`, which is `bins` or far above."""
    parts = np.asarray(values).astype(np.uint64) * np.uint64(bins) // np.uint64(modulus)
    assert_fits(np.bincount(parts.astype(np.int64), minlength=bins), np.ones(bins))
