"""The groups in which vectors are masked and summed: F_q with q = 2**32 - 5, and Z_2**32.

Elements are uint32, 4 bytes on the wire, little-endian. Masks are exactly uniform: a keystream
word that is not a group element is rejected and replaced, never reduced.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import keystream

Elements = NDArray[np.uint32]
Signed = NDArray[np.int64]

BLOCK_WORDS = keystream.BLOCK_BYTES // 4
# Open streams cost memory, not time: a server with very many masks takes them in batches.
STREAMS_AT_ONCE = 4096


class Group(ABC):
    """An additive group of integers modulo `modulus` with at most 2**32 elements.

    Integers from -half_range to half_range are represented without ambiguity.
    """

    name: str
    modulus: int

    @property
    def half_range(self) -> int:
        return (self.modulus - 1) // 2

    @abstractmethod
    def reduce(self, values: Signed) -> Elements:
        """Return int64 `values`, of any sign, as group elements."""

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        """Return the first ``counts[k]`` uniform elements of ``keys[k]``, for all k, end to end."""
        return keystream.read(keys, [4 * count for count in counts]).view("<u4")

    @abstractmethod
    def _add_masks(self, vector: Elements, keys: Sequence[bytes], signs: Sequence[int]) -> None:
        """Add the masks of `keys` to `vector` in place."""

    def add_masks(self, vector: Elements, keys: Iterable[bytes], signs: Iterable[int]) -> Elements:
        """Return ``vector + sum_k signs[k] * PRG(keys[k])``.

        Parameters
        ----------
        vector : ndarray of uint32
            Group elements.
        keys : iterable of bytes
            One 16-byte key a mask; the mask is as long as the vector.
        signs : iterable of int
            +1 or -1 for each key.
        """
        out = vector.copy()
        pairs = zip(keys, signs, strict=True)
        while batch := list(itertools.islice(pairs, STREAMS_AT_ONCE)):
            batch_keys, batch_signs = zip(*batch, strict=True)
            self._add_masks(out, batch_keys, batch_signs)
        return out

    def decode(self, elements: Elements) -> Signed:
        """Return the integer of smallest magnitude that each element represents (phi^-1)."""
        values = elements.astype(np.int64)
        values[values > self.half_range] -= self.modulus
        return values

    def add_into(self, total: Elements, other: Elements) -> None:
        """Add `other` to `total` in place, element by element."""
        total[:] = self.reduce(total.astype(np.int64) + other)


class Field(Group):
    """Integers modulo a prime q <= 2**32, by default the largest below 2**32.

    Smaller primes serve tests: they reject often, q = 2**32 - 5 once in 8.6e8 words.
    """

    def __init__(self, modulus: int = 2**32 - 5, name: str = "fq") -> None:
        self.modulus = modulus
        self.name = name

    def reduce(self, values: Signed) -> Elements:
        # Floor division by a scalar is vectorised in numpy, the remainder is not.
        return (values - values // self.modulus * self.modulus).astype(np.uint32)

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        words = super().elements(keys, counts)
        rejected = np.flatnonzero(words >= self.modulus)
        if rejected.size:
            ends = np.cumsum(counts)
            for index in rejected.tolist():
                owner = int(np.searchsorted(ends, index, side="right"))
                position = index - int(ends[owner]) + counts[owner]
                words[index] = self._replacement(keys[owner], position)
        return words

    def _replacement(self, key: bytes, position: int) -> int:
        """Return the element that takes the place of a rejected word.

        It is the word at the same position of the next stream of the same key that has an element
        there, so a vector can be generated in blocks of any size, in any order.
        """
        block, word = divmod(position, 4)
        for stream in itertools.count(1):
            candidates = keystream.open_stream(key, stream, block).update(bytes(16))
            value = int.from_bytes(candidates[4 * word : 4 * word + 4], "little")
            if value < self.modulus:
                return value
        raise AssertionError("unreachable")

    def _add_masks(self, vector: Elements, keys: Sequence[bytes], signs: Sequence[int]) -> None:
        # Two words make one 64-bit lane. `total` sums the lanes modulo 2**64, `upper` sums their
        # upper words exactly; the lower words' sum is what is left. That takes three passes over a
        # keystream block in cache and no modular reduction before all masks are in.
        streams = [keystream.open_stream(key) for key in keys]
        raw = np.empty(keystream.BLOCK_BYTES, np.uint8)
        for start, stop in _blocks(vector.size):
            lanes = (stop - start + 1) // 2
            block = raw[: 8 * lanes]
            words, pairs = block.view("<u4"), block.view("<u8")
            total, upper = np.zeros(lanes, np.uint64), np.zeros(lanes, np.uint64)
            shifted = np.empty(lanes, np.uint64)
            for key, sign, stream in zip(keys, signs, streams, strict=True):
                keystream.fill(stream, block)
                if words.max() >= self.modulus:
                    for index in np.flatnonzero(words >= self.modulus).tolist():
                        words[index] = self._replacement(key, start + index)
                add = np.add if sign > 0 else np.subtract
                add(total, pairs, out=total)
                np.right_shift(pairs, np.uint64(32), out=shifted)
                add(upper, shifted, out=upper)
            masks = np.empty((lanes, 2), np.int64)
            masks[:, 0] = (total - (upper << np.uint64(32))).view(np.int64)
            masks[:, 1] = upper.view(np.int64)
            flat = masks.reshape(-1)[: stop - start]
            vector[start:stop] = self.reduce(flat + vector[start:stop])


class Ring(Group):
    """Integers modulo 2**32: every keystream word is an element, unsigned addition is the sum."""

    name = "ring32"
    modulus = 2**32

    def reduce(self, values: Signed) -> Elements:
        return values.astype(np.uint32)

    def add_into(self, total: Elements, other: Elements) -> None:
        np.add(total, other, out=total)

    def _add_masks(self, vector: Elements, keys: Sequence[bytes], signs: Sequence[int]) -> None:
        streams = [keystream.open_stream(key) for key in keys]
        raw = np.empty(keystream.BLOCK_BYTES, np.uint8)
        for start, stop in _blocks(vector.size):
            block = raw[: 4 * (stop - start)]
            words = block.view("<u4")
            part = vector[start:stop]
            for sign, stream in zip(signs, streams, strict=True):
                keystream.fill(stream, block)
                (np.add if sign > 0 else np.subtract)(part, words, out=part)


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the blocks of `BLOCK_WORDS` that `length` words are worked in."""
    for start in range(0, length, BLOCK_WORDS):
        yield start, min(start + BLOCK_WORDS, length)


FQ = Field()
RING32 = Ring()
GROUPS: dict[str, Group] = {group.name: group for group in (FQ, RING32)}
