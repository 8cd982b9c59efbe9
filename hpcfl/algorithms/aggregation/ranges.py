"""A server of several ranks: each adds up and unmasks a range of what devices upload.

They are one party, and know together what a server of one rank knows. The first of them plays the
protocol; the others are sent their part of every upload that it takes, and, once it has put the
secrets together, the keys of all masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.comm.phases import Payload, Rows
from hpcfl.crypto.groups import Elements
from hpcfl.crypto.keystream import KEY_BYTES
from hpcfl.errors import UsageError

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import QuantisedProtocol

# A range begins with a whole number of 64 values, of bytes, and of the units that parts of uploads
# are multiples of, whatever the bits of a value.
UNIT_BYTES = 26_880


@dataclass(frozen=True)
class Dealt:
    """How the values of an upload are dealt out to the ranks of a server."""

    ranges: Sequence[range]  # of each rank, end to end; none is empty
    bits: int  # of a value

    @classmethod
    def out(cls, bits: int, count: int, ranks: int) -> Dealt:
        """Deal out so many values; a UsageError says that there are too few."""
        unit = 8 * UNIT_BYTES // bits
        units = -(-count // unit)
        if units < ranks:
            raise UsageError(
                f"--server-ranks is {ranks}, and an upload has {count} values: too few for ranks "
                f"that take {unit} at a time; give at most {units}"
            )
        bounds = [min(k * units // ranks * unit, count) for k in range(ranks + 1)]
        return cls([range(*ends) for ends in pairwise(bounds)], bits)

    def cuts(self, envelope: int, largest: int) -> list[slice]:
        """Return the bytes that each rank receives of a message of up to `largest`.

        The first of them has the `envelope` in front.
        """
        inner = [envelope + values.start * self.bits // 8 for values in self.ranges[1:]]
        return [slice(*ends) for ends in pairwise([0, *inner, largest])]


def mask_rows(keys: Sequence[bytes], signs: Sequence[int]) -> Rows:
    """Return the keys of masks and the signs with which they are added, a row each."""
    rows = np.empty((len(keys), KEY_BYTES + 1), np.uint8)
    rows[:, :KEY_BYTES] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
    rows[:, KEY_BYTES] = np.array(signs) > 0
    return rows


class RangeSum:
    """The sum of the uploads over a range of their values."""

    def __init__(self, protocol: QuantisedProtocol, values: range, count: int) -> None:
        self._protocol = protocol
        self._group = protocol.summed_in
        self._values = values
        self._count = count  # of an upload
        self._sum = self._group.adder(len(values))

    def add(self, words: Elements) -> None:
        """Add the words of an upload at all places of the range."""
        self._sum.add(words)

    def add_part(self, sender: int, part: Payload, start: int, size: int) -> bool:
        """Add some of an upload, as `QuantisedProtocol.read_part` has it; return whether the last.

        MessageError if an upload has another size.
        """
        place, words = self._protocol.read_part(part, start, size, self._count, sender)
        self._sum.add(words, place - self._values.start)
        return place + words.size == self._values.stop

    def take(self) -> Elements:
        """Return the sum as it is; it is kept no longer."""
        return self._sum.take()

    def unmask(self, masks: Payload) -> Elements:
        """Return the sum without masks, the bytes of `mask_rows`; it is kept no longer."""
        words, masks = self.take(), masks.reshape(-1, KEY_BYTES + 1)
        keys: Iterable[bytes] = (row[:KEY_BYTES].tobytes() for row in masks)
        signs = 2 * masks[:, KEY_BYTES].astype(np.int64) - 1
        threads = self._protocol.parameters.threads
        self._group.mask(words, keys, signs.tolist(), threads, self._values.start)
        return words
