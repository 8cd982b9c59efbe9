"""Coordinates that a pair of devices selects: i.i.d. Bernoulli patterns from a shared key.

The sampler uses integers only, so machines with different maths libraries always agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import keystream

Positions = NDArray[np.int64]
Counts = NDArray[np.int64]


class GapSampler:
    """Draws the gaps between selected coordinates, in O(probability * d) per pair.

    The paper draws one field element for each of the d coordinates (SparseSecAgg, eq. 13). The
    distribution of the patterns is the same.

    A gap is geometric: ``P(gap > g) = (1 - probability)**g``. One 64-bit word u gives one gap, as
    ``1 + #{g : u < T_g}`` with ``T_g = floor(2**64 (1 - probability)**g)`` for g up to `REACH`. A
    word below the last threshold only means that the next `REACH` coordinates are not selected. The
    distribution is memoryless, so the next word continues from there.

    The rounding of the thresholds changes each gap's probability by less than 2**-63.
    """

    REACH = 1 << 14
    _DIRECT_BITS = 16

    def __init__(self, probability: Fraction) -> None:
        self._probability = probability
        self._thresholds, self._direct = _gap_tables(probability, self.REACH, self._DIRECT_BITS)

    def select(self, keys: Sequence[bytes], dim: int) -> tuple[Positions, Counts]:
        """Return the coordinates below `dim` that 16-byte keys select, and each key's count.

        Each key's coordinates are increasing; the keys' lists follow one another.
        """
        return self._select(keys, dim, self.words_for(dim))

    def _select(self, keys: Sequence[bytes], dim: int, words: int) -> tuple[Positions, Counts]:
        """Select with the first `words` words of every key, or with more if a key needs more."""
        if not keys:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        raw = keystream.read(keys, [8 * words] * len(keys))
        numbers = raw.view("<u8")
        gaps = self._direct[numbers >> np.uint64(64 - self._DIRECT_BITS)].astype(np.int64)
        undecided = np.flatnonzero(gaps == 0)
        gaps[undecided] = _gaps_by_search(self._thresholds, numbers[undecided])
        gaps = gaps.reshape(len(keys), words)
        ends = np.cumsum(np.minimum(gaps, self.REACH), axis=1)
        if (ends[:, -1] < dim).any():
            # The number of words read does not change a list, so starting again is safe.
            return self._select(keys, dim, 2 * words)
        selected = (gaps <= self.REACH) & (ends <= dim)
        return ends[selected] - 1, np.count_nonzero(selected, axis=1)

    def words_for(self, dim: int) -> int:
        """Return a number of words that is nearly always enough; only speed depends on it."""
        rate = float(self._probability)
        step = -math.expm1(self.REACH * math.log1p(-rate)) / rate if rate < 1 else 1.0
        expected = dim / step
        return math.ceil(expected + 5 * math.sqrt(expected) + 8)


def _gaps_by_search(thresholds: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return ``1 + #{thresholds above the word}`` for each word; thresholds are increasing."""
    return len(thresholds) + 1 - np.searchsorted(thresholds, words, side="right")


@lru_cache(maxsize=4)
def _gap_tables(
    probability: Fraction, reach: int, direct_bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    """Return the increasing thresholds, and the gap by a word's leading bits (0 if undecided)."""
    fraction_bits = 192
    stay = (1 << fraction_bits) - math.floor((1 << fraction_bits) * probability)
    power = 1 << fraction_bits
    powers = []
    for _ in range(reach):
        power = power * stay >> fraction_bits
        powers.append(power >> (fraction_bits - 64))
    thresholds = np.array(powers[::-1], np.uint64)
    first = np.arange(1 << direct_bits, dtype=np.uint64) << np.uint64(64 - direct_bits)
    last = first | np.uint64((1 << (64 - direct_bits)) - 1)
    gap_of_first = _gaps_by_search(thresholds, first)
    decided = gap_of_first == _gaps_by_search(thresholds, last)
    return thresholds, np.where(decided, gap_of_first, 0).astype(np.uint16)


def subset(seed: bytes, count: int, size: int) -> list[int]:
    """Return `size` different numbers below `count`, increasing, determined by a seed.

    The numbers are keystream words of the seed's first 16 bytes, modulo `count`, until `size` of
    them differ. If `size` is above half of `count`, the numbers to leave out are drawn instead. All
    sets are equally likely, up to a relative difference below ``size * count / 2**64``.
    """
    if size > count // 2:
        left_out = subset(seed, count, count - size)
        return np.delete(np.arange(count), left_out).tolist()
    words, found = 2 * size + 8, np.empty(0, np.int64)
    # A longer read begins with the same words.
    while found.size < size:
        raw = keystream.read([seed[: keystream.KEY_BYTES]], [8 * words]).view("<u8")
        _, first = np.unique(numbers := raw % np.uint64(count), return_index=True)
        found, words = numbers[np.sort(first)[:size]].astype(np.int64), 2 * words
    return np.sort(found).tolist()


def permutation(seed: bytes, count: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(count)``; a seed gives the same one on every machine.

    Each number gets 128 bits of the keystream of the seed's first 16 bytes as a sort key. Two keys
    are equal, which makes the order non-uniform, with a probability below ``count**2 / 2**129``.
    """
    words = keystream.read([seed[: keystream.KEY_BYTES]], [16 * count]).view("<u8").reshape(-1, 2)
    return np.lexsort((words[:, 1], words[:, 0]))
