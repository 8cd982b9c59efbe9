"""The groups in which vectors are masked and summed: Z_2**B, and F_p, p the largest B-bit prime.

F_q is that of 32 bits, q = 2**32 - 5. In memory an element is a machine word, the narrowest that
holds it. On the wire it is B bits: n elements are ceil(B n / 8) bytes, the lowest bits first. Masks
are exactly uniform: the lowest B bits of a keystream word are an element, but in a field, where
they may be none, and are rejected and replaced, never reduced. To draw no more than B bits, where B
is 12, 20, 24 or 28, costs more than the keystream that it saves (``benchmarks/dense_mask.py``).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from hpcfl.crypto import keystream
from hpcfl.crypto.threads import ALIGNED, spread

# Of the group's dtype.
Elements = NDArray[np.unsignedinteger[Any]]
Signed = NDArray[np.int64]
# What elements and signed integers are added up in; see `Group.zeros`.
Sums = NDArray[Any]

BLOCK_BYTES = keystream.BLOCK_BYTES
LONG_BLOCK_BYTES = 3 * BLOCK_BYTES
# A key, the stream of it, and the sign with which its mask is added.
Mask = tuple[bytes, CipherContext, int]
# Pairs of elements that are packed at a time, in cache.
PACKED_PAIRS = 1 << 14
# Open streams cost memory, not time: a server with very many masks takes them in batches.
STREAMS_AT_ONCE = 4096


class Group(ABC):
    """An additive group of integers modulo `modulus` with at most 2**32 elements.

    Integers from -half_range to half_range are represented without ambiguity.
    """

    name: str
    modulus: int
    bits: int  # of an element on the wire
    dtype: np.dtype[Any]  # the little-endian word that an element is in memory
    sums: np.dtype[Any]  # of elements that are added up: 2**31 of them do no harm in it

    @property
    def half_range(self) -> int:
        return (self.modulus - 1) // 2

    def holds(self, words: Elements) -> bool:
        """Return whether words that were unpacked, or summed on the way, are all elements."""
        return True

    @property
    def whole_words(self) -> bool:
        """Whether an element has as many bits on the wire as in memory."""
        return self.bits == 8 * self.dtype.itemsize

    def wire_bytes(self, count: int) -> int:
        """Return the number of bytes of so many elements on the wire."""
        return -(-self.bits * count // 8)

    def pack(self, elements: Elements) -> NDArray[np.uint8]:
        """Return elements as they are sent, `wire_bytes` of them; a view where words are sent."""
        if self.whole_words:
            return elements.view(np.uint8)
        # Two elements are a whole number of bytes, as B is a multiple of four.
        pairs, width = -(-elements.size // 2), self.bits // 4
        lane, low, gap = self._lane()
        packed = np.empty((pairs, width), np.uint8)
        for start in range(0, pairs, PACKED_PAIRS):
            part = elements[2 * start : 2 * (start + PACKED_PAIRS)]
            lanes = (part if part.size % 2 == 0 else np.append(part, part.dtype.type(0))).view(lane)
            joined = lanes >> gap
            joined &= ~low
            joined |= lanes & low
            columns = joined.view(np.uint8).reshape(-1, lane.itemsize)
            for column in range(width):
                packed[start : start + PACKED_PAIRS, column] = columns[:, column]
        return packed.reshape(-1)[: self.wire_bytes(elements.size)]

    def unpack(self, payload: NDArray[np.uint8], count: int) -> Elements:
        """Return the `count` elements that were packed so; a view where words are sent.

        ValueError if bits behind the last one are not zero.
        """
        if self.whole_words:
            return payload.view(self.dtype)
        pairs, width = -(-count // 2), self.bits // 4
        lane, low, gap = self._lane()
        pairs_of_words = np.empty(pairs, lane)
        # A lane is read with what is behind it, the first bytes of the next.
        some = np.empty(PACKED_PAIRS * width + lane.itemsize, np.uint8)
        for start in range(0, pairs, PACKED_PAIRS):
            part = payload[start * width : (start + PACKED_PAIRS) * width]
            some[: part.size] = part
            some[part.size :] = 0
            lanes = pairs_of_words[start : start + PACKED_PAIRS]
            lanes[:] = np.ndarray(lanes.size, lane, some, strides=(width,))
            upper = lanes << gap
            upper &= low << lane.type(4 * lane.itemsize)
            lanes &= low
            lanes |= upper
        elements = pairs_of_words.view(self.dtype)
        if elements[count:].any():
            raise ValueError("bits behind the last value are not zero")
        return elements[:count]

    def _lane(self) -> tuple[np.dtype[Any], Any, Any]:
        """Return the word of two elements, the mask of the lower one, and the bits between them."""
        lane = np.dtype(f"<u{2 * self.dtype.itemsize}")
        return lane, lane.type((1 << self.bits) - 1), lane.type(8 * self.dtype.itemsize - self.bits)

    def _lowest(self, words: Elements) -> Elements:
        """Return words, changed in place, without the bits that no element has."""
        if not self.whole_words:
            np.bitwise_and(words, self.dtype.type((1 << self.bits) - 1), out=words)
        return words

    def zeros(self, count: int) -> Sums:
        """Return a sum that nothing is in yet, of so many coordinates.

        Arrays of the same type are added to it by NumPy; `reduce` makes elements of it.
        """
        return np.zeros(count, self.sums)

    def add_mask(self, total: Sums, key: bytes, sign: int) -> None:
        """Add the mask of a key, as long as the sum `total`, to it in place."""
        (np.add if sign > 0 else np.subtract)(total, self.elements([key], [total.size]), out=total)

    @abstractmethod
    def reduce(self, values: Signed | Sums) -> Elements:
        """Return int64 `values`, of any sign, or a sum, as group elements."""

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        """Return the first ``counts[k]`` uniform elements of ``keys[k]``, for all k, end to end."""
        width = self.dtype.itemsize
        return keystream.read(keys, [width * count for count in counts]).view(self.dtype)

    @abstractmethod
    def _mask_block(
        self, vector: Elements, masks: Sequence[Mask], block: NDArray[np.uint8], first: int
    ) -> None:
        """Add the next elements of each stream, from `first` on, with memory for those of one."""

    def add_masks(self, vector: Elements, keys: Iterable[bytes], signs: Iterable[int]) -> Elements:
        """Return ``vector + sum_k signs[k] * PRG(keys[k])``, for 16-byte keys, signs +1 or -1."""
        out = vector.copy()
        self.mask(out, keys, signs)
        return out

    def mask(
        self,
        vector: Elements,
        keys: Iterable[bytes],
        signs: Iterable[int],
        threads: int = 1,
        first: int = 0,
    ) -> None:
        """Add the masks of `keys` to a vector in place, on so many threads; see `add_masks`.

        The vector may be a part of the masked one, which begins with its element `first`: a
        multiple of `ALIGNED`.
        """
        assert first % ALIGNED == 0
        pairs = zip(keys, signs, strict=True)
        while batch := list(itertools.islice(pairs, STREAMS_AT_ONCE)):
            batch_keys, batch_signs = zip(*batch, strict=True)
            # Threads that take turns at the interpreter do so less often with longer blocks.
            block = BLOCK_BYTES if threads == 1 else LONG_BLOCK_BYTES
            work = partial(self._mask_part, vector, first, batch_keys, batch_signs, block)
            spread(work, vector.size, threads)

    def _mask_part(
        self,
        vector: Elements,
        first: int,
        keys: Sequence[bytes],
        signs: Sequence[int],
        block_bytes: int,
        part: slice,
    ) -> None:
        """Add the masks to a part of a vector, which begins with a keystream block."""
        behind = (first + part.start) * self.dtype.itemsize // keystream.CIPHER_BYTES
        streams = [keystream.open_stream(key, block=behind) for key in keys]
        signed = list(zip(keys, streams, signs, strict=True))
        block = np.empty(block_bytes, np.uint8)
        words = block_bytes // self.dtype.itemsize
        for start in range(part.start, part.stop, words):
            some = vector[start : min(start + words, part.stop)]
            self._mask_block(some, signed, block, first + start)

    def decode(self, elements: Elements) -> Signed:
        """Return the integer of smallest magnitude that each element represents (phi^-1)."""
        return self.signed(elements.copy()).astype(np.int64)

    def signed(self, elements: Elements) -> NDArray[np.signedinteger[Any]]:
        """Return the same in place of the elements, as integers of as many bytes."""
        if self.modulus < 1 << 8 * self.dtype.itemsize:
            modulus, largest = self.dtype.type(self.modulus), self.dtype.type(self.half_range)
            for start, stop in _blocks(elements.size, self.dtype.itemsize):
                part = elements[start:stop]
                # In numpy a subtraction with a condition is not vectorised.
                above = (part > largest).astype(self.dtype)
                above *= modulus
                part -= above
        return elements.view(f"<i{self.dtype.itemsize}")

    def adder(self, count: int) -> Adder:
        """Return what adds up vectors of so many elements."""
        return Adder(self, count)


class Adder:
    """Adds up vectors of elements, of which it holds no more than the sum.

    In words that wrap around with those of a ring, and in 64 bits those of a small field.
    """

    def __init__(self, group: Group, count: int) -> None:
        self._group = group
        self._words = group.zeros(count)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._words.size

    def add(self, elements: Elements, first: int = 0) -> None:
        """Add a vector, or a part of it from its place `first` on.

        A word that is not an element counts as the one that it is congruent to.
        """
        part = self._words[first : first + elements.size]
        np.add(part, elements, out=part)

    def take(self) -> Elements:
        """Return the sum, which then begins anew, of no coordinates."""
        words, self._words = self._words, self._words[:0].copy()
        done = words.dtype == self._group.dtype and self._group.whole_words
        return words if done else self._group.reduce(words)


class _Carried(Adder):
    """Sums of 32-bit words that may be any: beside each, how often it has wrapped around.

    That is five bytes a coordinate, and faster than sums of 64 bits.
    """

    MOST = 255

    def __init__(self, group: Group, count: int) -> None:
        super().__init__(group, 0)
        self._words = np.zeros(count, group.dtype)
        self._carries = np.zeros(count, np.uint8)
        self._added = 0  # how often anything was: a place has wrapped around no more often

    def add(self, elements: Elements, first: int = 0) -> None:
        self._added += 1
        wrapped = np.empty(BLOCK_BYTES // 4, np.uint8)
        for start, stop in _blocks(elements.size, 4):
            new, place = elements[start:stop], slice(first + start, first + stop)
            words, carries, flags = self._words[place], self._carries[place], wrapped[: new.size]
            if self._added > self.MOST and int(carries.max()) == self.MOST:
                self._fold(place)
            np.add(words, new, out=words)
            np.less(words, new, out=flags.view(np.bool_))
            np.add(carries, flags, out=carries)

    def _fold(self, place: slice) -> None:
        """Make elements of the words at some places, and begin to count anew there."""
        sums = self._carries[place].astype(np.int64)
        sums <<= 32
        sums += self._words[place]
        self._words[place] = self._group.reduce(sums)
        self._carries[place] = 0

    def take(self) -> Elements:
        for start, stop in _blocks(self._words.size, 8):
            self._fold(slice(start, stop))
        self._carries = self._carries[:0].copy()
        return super().take()


class Field(Group):
    """Integers modulo a prime of so many bits.

    Words that are no elements are rare where the prime is the largest: q = 2**32 - 5 rejects one in
    8.6e8, that of 8 bits one in 51. Smaller ones serve tests.
    """

    sums = np.dtype(np.int64)

    def __init__(self, modulus: int = 2**32 - 5, name: str = "fq", bits: int = 32) -> None:
        self.modulus = modulus
        self.name = name
        self.bits = bits
        self.dtype = _word(bits)

    @property
    def checks(self) -> int:
        """Random combinations that all let one wrong element pass with at most about 2**-64."""
        return -(-64 // self.bits)

    def reduce(self, values: Signed | Sums) -> Elements:
        elements, flat = np.empty(values.shape, self.dtype), values.reshape(-1)
        for start, stop in _blocks(values.size, 16):
            part = flat[start:stop]
            # Floor division by a scalar is vectorised in numpy, the remainder is not.
            elements.reshape(-1)[start:stop] = part - part // self.modulus * self.modulus
        return elements

    def adder(self, count: int) -> Adder:
        return (_Carried if self.bits == 32 else Adder)(self, count)

    def holds(self, words: Elements) -> bool:
        return not words.size or int(words.max()) < self.modulus

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        words = self._lowest(super().elements(keys, counts))
        rejected = np.flatnonzero(words >= self.modulus)
        ends = np.cumsum(counts)
        for owner in np.unique(np.searchsorted(ends, rejected, side="right")).tolist():
            self._replace(words[ends[owner] - counts[owner] : ends[owner]], keys[owner], 0)
        return words

    def _mask_block(
        self, vector: Elements, masks: Sequence[Mask], block: NDArray[np.uint8], first: int
    ) -> None:
        if self.bits < 32:
            self._mask_words(vector, masks, block, first)
            return
        # Two words make one 64-bit lane. `total` sums the lanes modulo 2**64, `upper` sums their
        # upper words exactly; the lower words' sum is what is left. That takes four passes over a
        # keystream block in cache and no modular reduction before all masks are in. Between the
        # passes threads wait for each other's Python, so that there is little of it.
        lanes = (vector.size + 1) // 2
        block = block[: 8 * lanes]
        words, pairs = block.view("<u4"), block.view("<u8")
        total, upper = np.zeros(lanes, np.uint64), np.zeros(lanes, np.uint64)
        fill, largest, half = keystream.filler(block), np.maximum.reduce, np.uint64(32)
        for key, stream, sign in masks:
            fill(stream)
            if largest(words) >= self.modulus:
                self._replace(words, key, first)
            add = np.add if sign > 0 else np.subtract
            add(total, pairs, out=total)
            np.right_shift(pairs, half, out=pairs)
            add(upper, pairs, out=upper)
        sums = np.empty((lanes, 2), np.int64)
        sums[:, 0] = (total - (upper << half)).view(np.int64)
        sums[:, 1] = upper.view(np.int64)
        flat = sums.reshape(-1)[: vector.size]
        flat += vector
        vector[:] = self.reduce(flat)

    def _mask_words(
        self, vector: Elements, masks: Sequence[Mask], block: NDArray[np.uint8], first: int
    ) -> None:
        """Add masks of elements that 64-bit sums have room for."""
        block = block[: vector.nbytes]
        words, total = block.view(self.dtype), vector.astype(self.sums)
        fill = keystream.filler(block)
        for key, stream, sign in masks:
            fill(stream)
            self._replace(self._lowest(words), key, first)
            (np.add if sign > 0 else np.subtract)(total, words, out=total)
        vector[:] = self.reduce(total)

    def _replace(self, words: Elements, key: bytes, first: int) -> None:
        """Replace what is no element in some of a key's words, in place.

        It gives way to the word at the same position of the next stream of the key that has an
        element there, so a vector can be generated in blocks of any size, in any order.
        """
        in_block = keystream.CIPHER_BYTES // self.dtype.itemsize
        for stream in itertools.count(1):
            if words.max() < self.modulus:
                return
            places = first + np.flatnonzero(words >= self.modulus)
            block = int(places[0]) // in_block
            behind = block * in_block
            span = bytes((int(places[-1]) + 1 - behind) * self.dtype.itemsize)
            opened = keystream.open_stream(key, stream, block)
            candidates = np.frombuffer(opened.update(span), self.dtype)
            words[places - first] = self._lowest(candidates[places - behind])


class Ring(Group):
    """Integers modulo 2**B: unsigned addition is the sum, but for bits above the lowest B."""

    def __init__(self, bits: int) -> None:
        self.name = f"ring{bits}"
        self.modulus = 1 << bits
        self.bits = bits
        self.dtype = _word(bits)
        self.sums = self.dtype

    def add_mask(self, total: Sums, key: bytes, sign: int) -> None:
        self.mask(total, [key], [sign])

    def reduce(self, values: Signed | Sums) -> Elements:
        return self._lowest(values.astype(self.dtype))

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        return self._lowest(super().elements(keys, counts))

    def _mask_block(
        self, vector: Elements, masks: Sequence[Mask], block: NDArray[np.uint8], first: int
    ) -> None:
        block = block[: vector.nbytes]
        words, fill = block.view(self.dtype), keystream.filler(block)
        for _, stream, sign in masks:
            fill(stream)
            (np.add if sign > 0 else np.subtract)(vector, words, out=vector)
        self._lowest(vector)


def _blocks(length: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the blocks that `length` words of `width` bytes are worked on in."""
    words = BLOCK_BYTES // width
    for start in range(0, length, words):
        yield start, min(start + words, length)


def _word(bits: int) -> np.dtype[Any]:
    """Return the narrowest word that holds so many bits."""
    return np.dtype("u1" if bits == 8 else "<u2" if bits <= 16 else "<u4")


FQ = Field()
# What is to be taken off 2**B for the largest prime below it.
_SHORT_OF = {8: 5, 12: 3, 16: 15, 20: 3, 24: 3, 28: 57}
# Those of fewer bits.
FIELDS = {bits: Field(2**bits - less, f"field{bits}", bits) for bits, less in _SHORT_OF.items()}
GROUPS: dict[str, Group] = {
    group.name: group for group in (FQ, *map(Ring, range(8, 33, 4)), *FIELDS.values())
}
