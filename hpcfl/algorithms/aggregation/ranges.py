"""A server of several ranks, each of which adds up and unmasks a range of the uploads.

Together the ranks are one party and know as much as a server of one rank. The first rank plays the
protocol. The others receive their part of every upload that it accepts and, after it has
reconstructed the secrets, the keys of all masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.comm.phases import Payload, Rows
from hpcfl.crypto.groups import Elements, Group
from hpcfl.crypto.keystream import KEY_BYTES
from hpcfl.errors import MessageError, UsageError
from hpcfl.values import dataclass

if TYPE_CHECKING:
    from hpcfl.algorithms.aggregation.base import AggregationProtocol
    from hpcfl.algorithms.aggregation.quantised import QuantisedProtocol

# For any number of bits per value, a range begins at a multiple of 64 values, of a byte, and of the
# unit of an upload's parts.
UNIT_BYTES = 26_880


@dataclass(frozen=True)
class Dealt:
    """The ranges of an upload's values that are dealt out to the ranks of a server."""

    ranges: Sequence[range]  # of each rank, end to end; none is empty
    bits: int  # of a value

    @classmethod
    def out(cls, bits: int, count: int, ranks: int) -> Dealt:
        """Deal out `count` values; raise UsageError if there are too few."""
        unit = 8 * UNIT_BYTES // bits
        units = -(-count // unit)
        if units < ranks:
            raise UsageError(
                f"--server-ranks is {ranks}, and an upload has {count} values: too few for ranks "
                f"that take {unit} at a time; give at most {units}"
            )
        bounds = [min(k * units // ranks * unit, count) for k in range(ranks + 1)]
        return cls([range(*ends) for ends in pairwise(bounds)], bits)

    @classmethod
    def uploads_of(cls, protocol: AggregationProtocol, ranks: int) -> Dealt:
        """Deal out the values of a protocol's uploads; UsageError if that is impossible."""
        group = protocol.summed_in
        if group is None or not any(step.by_all_ranks for step in protocol.steps):
            raise UsageError(
                f"{protocol.name} cannot use --server-ranks: nothing says how its server's work is "
                "dealt out to several ranks; leave it out, or use secagg, secagg-graph or common"
            )
        return cls.out(group.bits, getattr(protocol, "upload_dim", protocol.parameters.dim), ranks)

    def cuts(self, envelope: int, largest: int) -> list[slice]:
        """Return the slice of bytes that each rank receives of a message of up to `largest` bytes.

        The first slice begins with the `envelope`.
        """
        inner = [envelope + values.start * self.bits // 8 for values in self.ranges[1:]]
        return [slice(*ends) for ends in pairwise([0, *inner, largest])]


def mask_rows(keys: Sequence[bytes], signs: Sequence[int]) -> Rows:
    """Return one row for each mask, with its key and the sign with which it is added."""
    rows = np.empty((len(keys), KEY_BYTES + 1), np.uint8)
    rows[:, :KEY_BYTES] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
    rows[:, KEY_BYTES] = np.array(signs) > 0
    return rows


class RangeSum:
    """The sum of a range of the uploads' values."""

    def __init__(self, group: Group, values: range, count: int, threads: int = 1) -> None:
        self._group, self._values, self._count, self._threads = group, values, count, threads
        self._sum = group.adder(len(values))

    @classmethod
    def of(cls, protocol: QuantisedProtocol, values: range) -> RangeSum:
        """Return an empty sum for a protocol's uploads."""
        threads = protocol.parameters.threads
        return cls(protocol.summed_in, values, protocol.upload_dim, threads)

    def add(self, words: Elements) -> None:
        """Add an upload's words for the whole range."""
        self._sum.add(words)

    def add_part(self, sender: int, part: Payload, start: int, size: int) -> bool:
        """Add a part of an upload of `size` bytes, from byte `start`; return whether the last.

        MessageError if the upload has a wrong size. There are no other errors: a word that is not
        an element counts as the element that it is congruent to, and bits after the last value are
        ignored.
        """
        group = self._group
        if size != group.wire_bytes(self._count):
            reason = f"received {size} bytes, expected {group.wire_bytes(self._count)}"
            raise MessageError("masked_input", f"device {sender}", reason)
        place = 8 * start // group.bits
        if start + part.size == size and group.bits * self._count % 8:
            part = part.copy()
            part[-1] &= 0x0F
        words = group.unpack(part, min(self._count - place, 8 * part.size // group.bits))
        self._sum.add(words, place - self._values.start)
        return place + words.size == self._values.stop

    def take(self) -> Elements:
        """Return the sum, still masked, and free it."""
        return self._sum.take()

    def unmask(self, masks: Payload) -> Elements:
        """Return the sum without `masks`, the bytes of `mask_rows`, and free it."""
        words, masks = self.take(), masks.reshape(-1, KEY_BYTES + 1)
        keys = (row[:KEY_BYTES].tobytes() for row in masks)
        signs = 2 * masks[:, KEY_BYTES].astype(np.int64) - 1
        self._group.mask(words, keys, signs.tolist(), self._threads, self._values.start)
        return words
