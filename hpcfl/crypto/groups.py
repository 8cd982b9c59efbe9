"""The groups in which vectors are masked and summed: Z_2**B, and F_p, p the largest B-bit prime.

F_q is the field of 32 bits, q = 2**32 - 5. In memory an element is the narrowest machine word that
holds it. On the wire it takes B bits: n elements take ceil(B n / 8) bytes, lowest bits first. Masks
are exactly uniform: an element is the lowest B bits of a keystream word. In a field, a word that
reaches the modulus is rejected and replaced, never reduced. Where B is 12, 20, 24 or 28, drawing
only B bits would cost more than the keystream that it saves (``benchmarks/dense_mask.py``).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from hpcfl.crypto import keystream, native
from hpcfl.crypto.threads import ALIGNED, spread

# Group elements, of the group's dtype.
Elements = NDArray[np.unsignedinteger[Any]]
Signed = NDArray[np.signedinteger[Any]]
# Running sums of elements and signed integers; see `Group.zeros`.
Sums = NDArray[Any]

BLOCK_BYTES = keystream.BLOCK_BYTES
LONG_BLOCK_BYTES = 2 * BLOCK_BYTES
# Many short masks take less time in one call.
WORDS_AT_ONCE = 1 << 18
# A key, its cipher, and the sign of its mask.
Mask = tuple[bytes, Any, int]
# Writes the next keystream of a mask's cipher into a block.
Fill = Callable[[Any], object]
# Masks that can be added to a sum of words before the counts of its overflows may overflow.
MOST_CARRIES = 127
# Pairs of elements packed at a time, which stay in cache.
PACKED_PAIRS = 1 << 14
# Open streams cost memory, not time: a server with very many masks takes them in batches.
STREAMS_AT_ONCE = 4096


class Group(ABC):
    """An additive group of integers modulo `modulus` with at most 2**32 elements.

    Integers from -half_range to half_range are represented without ambiguity.
    """

    name: str
    modulus: int
    rejected: int = 0  # the lowest word of as many bits that is no element; 0 if all are
    bits: int  # size of an element on the wire
    dtype: np.dtype[Any]  # little-endian word of an element in memory
    sums: np.dtype[Any]  # type of running sums, which are correct for up to 2**31 elements

    @property
    def half_range(self) -> int:
        return (self.modulus - 1) // 2

    def holds(self, words: Elements) -> bool:
        """Return whether all words, unpacked or summed in transit, are elements."""
        return True

    @property
    def whole_words(self) -> bool:
        """Whether an element has as many bits on the wire as in memory."""
        return self.bits == 8 * self.dtype.itemsize

    def _kernel(self) -> native.Masker | None:
        # Where more words are rejected, replacing them one key at a time is slower than NumPy.
        return native.masker() if not self.rejected or self.bits > 16 else None

    def _mend(self, vector: Elements, words: Elements, key: bytes, sign: int, first: int) -> None:
        """Replace the words of a mask, part of a sum by now, that are no elements."""
        raise AssertionError("all words are elements of a ring")

    def wire_bytes(self, count: int) -> int:
        """Return the number of bytes of `count` elements on the wire."""
        return -(-self.bits * count // 8)

    def pack(self, elements: Elements) -> NDArray[np.uint8]:
        """Return the wire format of elements, `wire_bytes` long; a view if `whole_words`."""
        if self.whole_words:
            return elements.view(np.uint8)
        # B is a multiple of four, so two elements are a whole number of bytes.
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

    def pack_rows(self, rows: Elements) -> NDArray[np.uint8]:
        """Return the wire format of each row of n elements, shape (rows, ``wire_bytes(n)``)."""
        # Whole pairs are whole bytes, so that one call packs all rows.
        even = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
        packed = self.pack(even.reshape(-1)).reshape(-1, self.wire_bytes(even.shape[1]))
        return packed[:, : self.wire_bytes(rows.shape[1])]

    def unpack(self, payload: NDArray[np.uint8], count: int) -> Elements:
        """Return `count` elements from their wire format; a view if `whole_words`.

        Raise ValueError if the bits behind the last element are not zero.
        """
        if self.whole_words:
            return payload.view(self.dtype)
        pairs, width = -(-count // 2), self.bits // 4
        lane, low, gap = self._lane()
        pairs_of_words = np.empty(pairs, lane)
        # Reading a lane also reads the first bytes of the next one.
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
        """Return the type of a two-element word, its lower element's mask, and the gap in bits."""
        lane = np.dtype(f"<u{2 * self.dtype.itemsize}")
        return lane, lane.type((1 << self.bits) - 1), lane.type(8 * self.dtype.itemsize - self.bits)

    def _lowest(self, words: Elements) -> Elements:
        """Return words with all but their lowest `bits` bits cleared, in place."""
        if not self.whole_words:
            np.bitwise_and(words, self.dtype.type((1 << self.bits) - 1), out=words)
        return words

    def zeros(self, count: int) -> Sums:
        """Return a running sum of `count` coordinates, all zero.

        NumPy adds arrays to it; `reduce` turns it into elements.
        """
        return np.zeros(count, self.sums)

    def add_each(self, sums: Sequence[Sums], keys: Sequence[bytes], signs: Sequence[int]) -> None:
        """Add the mask of each key to its own running sum, in place, over that sum's length."""
        few = 1 + WORDS_AT_ONCE // max([1, *(part.size for part in sums)])
        for first in range(0, len(sums), few):
            parts, start = sums[first : first + few], 0
            words = self.elements(keys[first : first + few], [part.size for part in parts])
            for part, sign in zip(parts, signs[first : first + few], strict=True):
                mask = words[start : start + part.size]
                (np.add if sign > 0 else np.subtract)(part, mask, out=part)
                start += part.size

    @abstractmethod
    def reduce(self, values: Signed | Sums) -> Elements:
        """Return a running sum, or int64 values of any sign, as group elements."""

    def of_integers(self, values: Signed) -> Elements:
        """Return integers of magnitude at most `half_range` as elements, faster than `reduce`."""
        return self.reduce(values)

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        """Return the first ``counts[k]`` uniform elements of ``keys[k]``, for all k, end to end."""
        width = self.dtype.itemsize
        return keystream.read(keys, [width * count for count in counts]).view(self.dtype)

    @abstractmethod
    def _mask_block(
        self, vector: Elements, masks: Iterable[Mask], words: Elements, fill: Fill, first: int
    ) -> None:
        """Add each mask's next elements to a part that begins at `first`; `fill` writes `words`."""

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
        """Add the masks of `keys` to a vector in place, on `threads` threads; see `add_masks`.

        `vector` may be a part of a longer masked vector: `first`, a multiple of `ALIGNED`, is where
        it begins there.
        """
        assert first % ALIGNED == 0
        pairs = zip(keys, signs, strict=True)
        while batch := list(itertools.islice(pairs, STREAMS_AT_ONCE)):
            batch_keys, batch_signs = zip(*batch, strict=True)
            # With longer blocks, threads wait less often for the interpreter lock.
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
        """Add the masks to a part of a vector that begins on a keystream block's boundary."""
        behind = (first + part.start) * self.dtype.itemsize // keystream.CIPHER_BYTES
        longest = min(block_bytes, (part.stop - part.start) * self.dtype.itemsize)
        block = np.empty(longest + keystream.TAG_BYTES, np.uint8)
        count = max(1, longest // self.dtype.itemsize)
        words = block[:longest].view(self.dtype)
        kernel = self._kernel()
        if kernel and kernel.aes and keystream.counts(longest):
            for start in range(part.start, part.stop, count):
                some, place = vector[start : min(start + count, part.stop)], first + start
                number = place * self.dtype.itemsize // keystream.CIPHER_BYTES
                for bad in kernel.add(self, some, keys, signs, number):
                    stream = keystream.open_stream(keys[bad], block=number)
                    keystream.fill(stream, block[: some.nbytes])
                    self._mend(some, words[: some.size], keys[bad], signs[bad], place)
                self._lowest(some)
            return
        if not behind and part.stop <= count and keystream.at_once(longest):
            masks = zip(keys, map(AESGCM, keys), signs, strict=True)
            self._mask_block(vector[part], masks, words, keystream.beginner(block), first)
            return
        streams = [keystream.open_stream(key, block=behind) for key in keys]
        opened = list(zip(keys, streams, signs, strict=True))
        for start in range(part.start, part.stop, count):
            some = vector[start : min(start + count, part.stop)]
            fill = keystream.filler(block[: some.nbytes])
            self._mask_block(some, opened, words[: some.size], fill, first + start)

    def decode(self, elements: Elements) -> Signed:
        """Return the integer of smallest magnitude that each element represents (phi^-1)."""
        return self.signed(elements.copy()).astype(np.int64)

    def signed(self, elements: Elements) -> NDArray[np.signedinteger[Any]]:
        """Decode elements in place: return them as signed integers of the same width."""
        if self.modulus < 1 << 8 * self.dtype.itemsize:
            modulus, largest = self.dtype.type(self.modulus), self.dtype.type(self.half_range)
            for start, stop in _blocks(elements.size, self.dtype.itemsize):
                part = elements[start:stop]
                # NumPy does not vectorise a conditional subtraction.
                above = (part > largest).astype(self.dtype)
                above *= modulus
                part -= above
        return elements.view(f"<i{self.dtype.itemsize}")

    def adder(self, count: int) -> Adder:
        """Return an adder for vectors of `count` elements."""
        return Adder(self, count)

    def add_into(self, total: Elements, other: Elements) -> None:
        """Add `other` to `total` in place, element by element."""
        total[:] = self.reduce(total.astype(np.int64) + other)


class Adder:
    """Adds up vectors of elements; it stores only the sum.

    A ring's sums are words that wrap around; a small field's sums have 64 bits.
    """

    def __init__(self, group: Group, count: int) -> None:
        self._group = group
        self._words = group.zeros(count)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._words.size

    def add(self, elements: Elements, first: int = 0) -> None:
        """Add a vector, or the part of a vector that begins at `first`.

        A word that is not an element counts as the element congruent to it.
        """
        part = self._words[first : first + elements.size]
        np.add(part, elements, out=part)

    def take(self) -> Elements:
        """Return the sum as elements, and empty the adder: it then has no coordinates."""
        words, self._words = self._words, self._words[:0].copy()
        done = words.dtype == self._group.dtype and self._group.whole_words
        return words if done else self._group.reduce(words)


class _Carried(Adder):
    """Adds up arbitrary 32-bit words, with a count of overflows beside each sum.

    It takes five bytes per coordinate, and is faster than 64-bit sums.
    """

    MOST = 255

    def __init__(self, field: Field, count: int) -> None:
        super().__init__(field, 0)
        self._field = field
        self._words = np.zeros(count, field.dtype)
        self._carries = np.zeros(count, np.uint8)
        self._added = 0  # number of additions, an upper bound of every overflow count

    def add(self, elements: Elements, first: int = 0) -> None:
        self._added += 1
        wrapped = np.empty(BLOCK_BYTES // 4, np.uint8)
        for start, stop in _blocks(elements.size, 4):
            new, place = elements[start:stop], slice(first + start, first + stop)
            words, carries, flags = self._words[place], self._carries[place], wrapped[: new.size]
            if self._added > self.MOST and int(carries.max()) == self.MOST:
                self._field.fold(words, carries)
            np.add(words, new, out=words)
            np.less(words, new, out=flags.view(np.bool_))
            np.add(carries, flags, out=carries)

    def take(self) -> Elements:
        for start, stop in _blocks(self._words.size, 8):
            self._field.fold(self._words[start:stop], self._carries[start:stop])
        self._carries = self._carries[:0].copy()
        return super().take()


class Field(Group):
    """Integers modulo a prime of `bits` bits.

    With the largest such prime, few words are rejected: one in 8.6e8 for q = 2**32 - 5, one in 51
    for 8 bits. Smaller primes are for tests.
    """

    sums = np.dtype(np.int64)

    def __init__(self, modulus: int = 2**32 - 5, name: str = "fq", bits: int = 32) -> None:
        self.modulus = self.rejected = modulus
        self.name = name
        self.bits = bits
        self.dtype = _word(bits)

    @property
    def checks(self) -> int:
        """Number of random checks that miss a wrong element with probability about 2**-64."""
        return -(-64 // self.bits)

    def reduce(self, values: Signed | Sums) -> Elements:
        elements, flat = np.empty(values.shape, self.dtype), values.reshape(-1)
        for start, stop in _blocks(values.size, 16):
            part = flat[start:stop]
            # NumPy vectorises floor division by a scalar, but not the remainder.
            elements.reshape(-1)[start:stop] = part - part // self.modulus * self.modulus
        return elements

    def of_integers(self, values: Signed) -> Elements:
        elements = values.astype(self.dtype)
        # A negative one wrapped around at the end of the word, not at the modulus.
        too_much = self.dtype.type((1 << 8 * self.dtype.itemsize) - self.modulus)
        negative = values >> (8 * values.itemsize - 1)  # all ones
        elements -= negative.astype(self.dtype) & too_much
        return elements

    def adder(self, count: int) -> Adder:
        return _Carried(self, count) if self.bits == 32 else Adder(self, count)

    def holds(self, words: Elements) -> bool:
        return not words.size or int(words.max()) < self.modulus

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        words = self._lowest(super().elements(keys, counts))
        if self.holds(words):
            return words
        rejected, ends = np.flatnonzero(words >= self.modulus), np.cumsum(counts)
        # A set: np.unique would import numpy.ma, in a first round that is measured.
        for owner in {*np.searchsorted(ends, rejected, side="right").tolist()}:
            self._replace(words[ends[owner] - counts[owner] : ends[owner]], keys[owner], 0)
        return words

    def _mask_block(
        self, vector: Elements, masks: Iterable[Mask], words: Elements, fill: Fill, first: int
    ) -> None:
        if kernel := self._kernel():
            add = kernel.adder(self, vector, words)
            for key, cipher, sign in masks:
                fill(cipher)
                if add(sign):
                    self._mend(vector, words, key, sign, first)
            return
        if self.bits < 32:
            self._mask_words(vector, masks, words, fill, first)
            return
        # The sum wraps around, and `carries` counts how often. This takes four passes over a cached
        # keystream block. Threads wait for the interpreter lock between passes, so the loop has
        # little Python.
        carries, wrapped = np.zeros(vector.size, np.int8), np.empty(vector.size, np.bool_)
        flags, largest = wrapped.view(np.int8), np.maximum.reduce
        for number, (key, cipher, sign) in enumerate(masks, 1):
            fill(cipher)
            if largest(words) >= self.modulus:
                self._replace(words, key, first)
            if sign > 0:
                np.add(vector, words, out=vector)
                np.less(vector, words, out=wrapped)
                np.add(carries, flags, out=carries)
            else:
                np.less(vector, words, out=wrapped)
                np.subtract(vector, words, out=vector)
                np.subtract(carries, flags, out=carries)
            if number % MOST_CARRIES == 0:
                self.fold(vector, carries)
        self.fold(vector, carries)

    def _mend(self, vector: Elements, words: Elements, key: bytes, sign: int, first: int) -> None:
        rejected = np.flatnonzero(self._lowest(words) >= self.modulus)
        # What the kernel added wraps around with the words, and so does its opposite.
        added = words[rejected] if sign > 0 else self.modulus - words[rejected]
        added[added == self.modulus] = 0
        self._replace(words, key, first)
        vector[rejected] = self.reduce(
            (vector[rejected] - added).astype(np.int64) + sign * words[rejected].astype(np.int64)
        )

    def fold(self, words: Elements, carries: NDArray[np.integer[Any]]) -> None:
        """Reduce sums that wrapped around to elements, and reset the counts of their overflows."""
        sums = carries.astype(np.int64)
        sums <<= 32
        sums += words
        words[:] = self.reduce(sums)
        carries[:] = 0

    def _mask_words(
        self, vector: Elements, masks: Iterable[Mask], words: Elements, fill: Fill, first: int
    ) -> None:
        """Add masks of fewer than 32 bits in 64-bit sums, as `_mask_block` does."""
        total = vector.astype(self.sums)
        for key, cipher, sign in masks:
            fill(cipher)
            self._replace(self._lowest(words), key, first)
            (np.add if sign > 0 else np.subtract)(total, words, out=total)
        vector[:] = self.reduce(total)

    def _replace(self, words: Elements, key: bytes, first: int) -> None:
        """Replace the words of a key that are not elements, in place; `words` begin at `first`.

        The replacement is the word at the same position of the key's next stream that has an
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
    """Integers modulo 2**B: a sum is an unsigned sum of which only the lowest B bits are kept."""

    def __init__(self, bits: int) -> None:
        self.name = f"ring{bits}"
        self.modulus = 1 << bits
        self.bits = bits
        self.dtype = _word(bits)
        self.sums = self.dtype

    def reduce(self, values: Signed | Sums) -> Elements:
        return self._lowest(values.astype(self.dtype))

    def elements(self, keys: Sequence[bytes], counts: Sequence[int]) -> Elements:
        return self._lowest(super().elements(keys, counts))

    def add_into(self, total: Elements, other: Elements) -> None:
        np.add(total, other, out=total)
        self._lowest(total)

    def _mask_block(
        self, vector: Elements, masks: Iterable[Mask], words: Elements, fill: Fill, first: int
    ) -> None:
        for _, cipher, sign in masks:
            fill(cipher)
            (np.add if sign > 0 else np.subtract)(vector, words, out=vector)
        self._lowest(vector)


def _blocks(length: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of cache-sized blocks of `length` words of `width` bytes."""
    words = BLOCK_BYTES // width
    for start in range(0, length, words):
        yield start, min(start + words, length)


def _word(bits: int) -> np.dtype[Any]:
    """Return the narrowest word that holds `bits` bits."""
    return np.dtype("u1" if bits == 8 else "<u2" if bits <= 16 else "<u4" if bits <= 32 else "<u8")


FQ = Field()
# The largest prime below 2**B is 2**B minus this.
_SHORT_OF = {8: 5, 12: 3, 16: 15, 20: 3, 24: 3, 28: 57}
# The fields of fewer than 32 bits.
FIELDS = {bits: Field(2**bits - less, f"field{bits}", bits) for bits, less in _SHORT_OF.items()}
GROUPS: dict[str, Group] = {
    group.name: group for group in (FQ, *map(Ring, range(8, 33, 4)), *FIELDS.values())
}
