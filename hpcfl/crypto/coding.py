"""Lagrange coding over a field, and location of the wrong values of a codeword.

Any U of N coded pieces recover a vector, and any T reveal nothing (So et al., LightSecAgg, MLSys
2022, section 4; the code is a T-private maximum distance separable one).

The values of a polynomial of degree below t at n points are a word of a Reed-Solomon code. They
determine the polynomial if at most floor((n - t) / 2) of them are wrong. The *syndromes*, sums that
are zero for a correct word, locate them: Massey's algorithm finds their shortest recurrence, whose
reciprocal roots are the points of the wrong values (Massey, IEEE Trans. Inf. Theory 15(1), 1969;
without divisions as in Burton, IEEE Trans. Computers C-20(7), 1971).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import matrices
from hpcfl.crypto.groups import FQ, Elements, Field
from hpcfl.values import dataclass

Numbers = NDArray[np.uint64]


@dataclass(frozen=True)
class Code:
    """How a vector is cut up and encoded."""

    devices: int  # N: number of coded pieces
    needed: int  # U: coded pieces that recover the vector
    private: int  # T: coded pieces that reveal nothing
    dim: int  # d: dimension of the vector
    field: Field = FQ

    @property
    def pieces(self) -> int:
        """Number U - T of pieces that the vector is cut into."""
        return self.needed - self.private

    @property
    def width(self) -> int:
        """Number of elements in a piece, coded or uncoded."""
        return -(-self.dim // self.pieces)

    def encode(self, vector: Elements, random: Elements, holders: Sequence[int]) -> Elements:
        """Return the coded pieces for `holders`, shape (holders, width).

        `random` is T * width secret uniform elements.
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
    """Return the points at which a polynomial's values are the U uncoded pieces of a vector.

    The coded pieces are its values at 1 to N, so no coded piece is a piece of the vector.
    """
    return np.arange(devices + 1, devices + needed + 1)


@lru_cache(maxsize=4)
def _encoding(devices: int, needed: int, field: Field) -> Elements:
    return matrices.lagrange(_cut_at(devices, needed), np.arange(1, devices + 1), field)


def wrong_places(
    words: Elements, points: NDArray[np.int64], most: int, field: Field
) -> NDArray[np.bool_]:
    """Return which values are wrong, shape (R, n), in words with at most `most` wrong values.

    For a word with more, the result is up to `most` arbitrary places: the caller must check that
    the other values fit. Words, shape (R, n), are the values of polynomials of degree below
    n - 2 * `most` at n different points, none of them zero.
    """
    q = np.uint64(field.modulus)
    powers = np.ones((2 * most, points.size), np.uint64)
    for k in range(1, 2 * most):
        powers[k] = powers[k - 1] * points.astype(np.uint64) % q
    checks = powers * multipliers(points, field) % q
    syndromes = matrices.product(checks, words.T, field).T.astype(np.uint64)
    # The locator's coefficients, lowest first: its roots are the inverses of the points.
    locators = _shortest_recurrences(syndromes, most, q)[:, ::-1]
    return matrices.product(locators, powers[: most + 1], field) == 0


def multipliers(points: NDArray[np.int64], field: Field) -> Numbers:
    """Return the multipliers of the dual code, 1 / prod over j != i of (x_i - x_j), shape (n,)."""
    return matrices.inverse(matrices.difference_products(points.astype(np.uint64), field), field)


def _shortest_recurrences(sequences: Numbers, most: int, q: np.uint64) -> Numbers:
    """Return c of shape (R, most + 1), with c_0 s_r + c_1 s_(r-1) + ... = 0 for each sequence s.

    The recurrence is the shortest one, for every sequence that has one of at most `most` terms.
    """
    count = len(sequences)
    current = np.zeros((count, most + 1), np.uint64)
    current[:, 0] = 1
    # Each sequence's last shorter recurrence, shifted by the elements read since, and its
    # discrepancy.
    shorter, missed = current.copy(), np.ones(count, np.uint64)
    length = np.zeros(count, np.int64)
    for r in range(sequences.shape[1]):
        terms = min(r, most) + 1
        read = sequences[:, r::-1][:, :terms]
        misses = (current[:, :terms] * read % q).sum(axis=1) % q
        shorter = np.roll(shorter, 1, axis=1)
        shorter[:, 0] = 0
        corrected = missed[:, None] * current % q + (q - misses)[:, None] * shorter % q
        longer = (misses != 0) & (2 * length <= r)
        shorter[longer], missed[longer] = current[longer], misses[longer]
        length[longer] = r + 1 - length[longer]
        current = corrected % q
    return current
