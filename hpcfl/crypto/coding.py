"""Lagrange coding of vectors over a field: any U of N coded pieces give one back, T say nothing.

So et al., LightSecAgg (MLSys 2022), section 4; the code is a T-private maximum distance separable
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import matrices
from hpcfl.crypto.groups import FQ, Elements, Field

# To recover a vector takes a matrix whose entries cost as much each, and a row as much as so many.
INTERPOLATED_ROW = 64


@dataclass(frozen=True)
class Code:
    """How a vector is cut up and encoded."""

    devices: int  # N: pieces that the code gives
    needed: int  # U: of which so many give the vector back
    private: int  # T: of which so many say nothing
    dim: int  # d, of the vector
    field: Field = FQ

    @property
    def pieces(self) -> int:
        """Number U - T of pieces that the vector is cut into."""
        return self.needed - self.private

    @property
    def width(self) -> int:
        """Number of elements of a piece, coded or not."""
        return -(-self.dim // self.pieces)

    def encode(self, vector: Elements, random: Elements, holders: Sequence[int]) -> Elements:
        """Return the coded pieces of some devices, shape (holders, width).

        `vector` has shape (d,), `random`, uniform elements that nobody else knows, (T * width,).
        """
        padding = np.zeros(self.pieces * self.width - self.dim, self.field.dtype)
        pieces = np.concatenate([vector, padding, random]).reshape(self.needed, self.width)
        encoding = _encoding(self.devices, self.needed, self.field)[list(holders)]
        return matrices.product(encoding, pieces, self.field)

    def decode(self, coded: Elements, holders: NDArray[np.int64]) -> Elements:
        """Return the vector, shape (d,), from the coded pieces of any U devices, a row each."""
        wanted = _cut_at(self.devices, self.needed)[: self.pieces]
        decoding = matrices.lagrange(holders + 1, wanted, self.field)
        return matrices.product(decoding, coded, self.field).reshape(-1)[: self.dim]


def _cut_at(devices: int, needed: int) -> NDArray[np.int64]:
    """Return the points at which a polynomial's values are the U pieces of a vector.

    The coded ones are those at 1 to N, so that those at no U - T of them are the vector itself.
    """
    return np.arange(devices + 1, devices + needed + 1)


@lru_cache(maxsize=4)
def _encoding(devices: int, needed: int, field: Field) -> Elements:
    return matrices.lagrange(_cut_at(devices, needed), np.arange(1, devices + 1), field)
