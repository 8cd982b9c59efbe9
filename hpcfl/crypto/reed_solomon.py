"""Which values of a polynomial are wrong: decoding Reed-Solomon codes over prime fields.

Values at n points, of a polynomial of degree below t, determine it as long as no more than
floor((n - t) / 2) of them are wrong. Which ones follows from the *syndromes*, sums that are zero
where nothing is wrong: Massey's algorithm finds the shortest recurrence of these, whose reciprocal
roots are the points of the wrong values (Massey, IEEE Trans. Inf. Theory 15(1), 1969; without
divisions as in Burton, IEEE Trans. Computers C-20(7), 1971).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import matrices
from hpcfl.crypto.groups import Elements, Field

Numbers = NDArray[np.uint64]


def wrong_places(
    words: Elements, points: NDArray[np.int64], most: int, field: Field
) -> NDArray[np.bool_]:
    """Return which values are wrong, of words of which at most so many are.

    A word of which more are wrong gives any `most` places or fewer: see whether what is left of it
    fits. The values at n points belong to polynomials of degree below n - 2 * `most`.

    Parameters
    ----------
    words : ndarray of unsigned integers, shape (R, n)
        Elements of the field, a row a word.
    points : ndarray of int64, shape (n,)
        Where they are the polynomials' values: different ones, none of them zero.
    most : int
        How many of a word may be wrong, at least 1 and at most n / 2.
    field : Field
        What they are elements of.

    Returns
    -------
    ndarray of bool, shape (R, n)
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
    """Return 1 / prod over j != i of (x_i - x_j), shape (n,).

    Values of a polynomial of degree below t times these, and times the values of any one of degree
    below n - t, add up to zero: that is the dual of the code.
    """
    return matrices.inverse(matrices.difference_products(points.astype(np.uint64), field), field)


def _shortest_recurrences(sequences: Numbers, most: int, q: np.uint64) -> Numbers:
    """Return c of shape (R, most + 1), with c_0 s_r + c_1 s_(r-1) + ... = 0 for each sequence s.

    The shortest ones, for those sequences that have one of at most `most` terms.
    """
    count = len(sequences)
    current = np.zeros((count, most + 1), np.uint64)
    current[:, 0] = 1
    # Each sequence's last recurrence that was shorter, shifted by what was read since, and by how
    # much that one missed.
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
