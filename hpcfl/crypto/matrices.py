"""Exact matrix products over prime fields, and Lagrange interpolation matrices.

BLAS computes in float64, which holds all integers up to 2**53. Of the two matrices, the smaller one
is split into parts of so few bits that no sum of its products is larger. For F_q these are three
parts of at most 11 bits: fewer products than those of two matrices of 16-bit halves.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import FQ, Elements, Field

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Terms at a time. An element of B bits times a part of `EXACT` - B bits is below 2**43, and the sum
# of 2**10 such products below 2**53: no partial sum is rounded, in whatever order BLAS adds.
TERMS, EXACT = 1 << 10, 43
# Elements of the product at a time. They stay in cache, and are enough to outweigh the dozen NumPy
# calls per block.
BLOCK, FEWEST = 1 << 15, 128

Floats = NDArray[np.float64]


def product(left: Elements | Floats, right: Elements, field: Field = FQ) -> Elements:
    """Return ``left @ right``, of elements of a field; a large `left` is best given as float64."""
    rows, columns = len(left), right.shape[1]
    found = np.zeros((rows, columns), field.dtype)
    few = max(FEWEST, BLOCK // max(rows, 1))
    split_left = left.size < right.size
    # BLAS threads would use unmeasured CPU time, on cores that belong to other ranks.
    with one_thread():
        for start in range(0, len(right), TERMS):
            terms = slice(start, start + TERMS)
            mine = left[:, terms]
            ours = _parts(mine.T, field).T if split_left else mine.astype(np.float64, copy=False)
            for first in range(0, columns, few):
                block = slice(first, first + few)
                some = right[terms, block]
                theirs = some.astype(np.float64) if split_left else _parts(some, field)
                found[:, block] = _joined(ours @ theirs, found[:, block], field)
    return found


def _shifts(field: Field) -> range:
    """Return where the parts of an element begin, in bits."""
    return range(0, field.bits, min(32, EXACT - field.bits))


def _parts(matrix: Elements | Floats, field: Field) -> Floats:
    """Return the lowest bits of a matrix's elements, beside them the next ones, and so on."""
    shifts, words = _shifts(field), matrix.astype(np.uint32, copy=False)
    if len(shifts) == 1:
        return words.astype(np.float64)
    return np.hstack([words >> k & (1 << shifts.step) - 1 for k in shifts], dtype=np.float64)


def _joined(sums: Floats, found: Elements, field: Field) -> NDArray[np.int64]:
    """Return `found` plus the products with the parts, which lie side by side or stacked."""
    shifts, (rows, columns) = _shifts(field), found.shape
    beside = sums.reshape(rows, len(shifts), columns).swapaxes(0, 1)
    *lower, highest = beside if len(sums) == rows else sums.reshape(-1, rows, columns)
    total = highest.astype(np.int64)
    for part in reversed(lower):
        total = (_reduced(total, field) << shifts.step) + part.astype(np.int64)
    total += found
    return _reduced(total, field)


def _reduced(values: NDArray[np.int64], field: Field) -> NDArray[np.int64]:
    # NumPy vectorises floor division by a scalar, but not the remainder.
    return values - values // field.modulus * field.modulus


def lagrange(
    points: NDArray[np.int64], places: NDArray[np.int64], field: Field = FQ
) -> NDArray[np.uint64]:
    """Return the matrix that maps a polynomial's values at `points` to its values at `places`.

    For m points x, a degree below m and n places y, all m + n of them different elements of the
    field, entry (j, k) is prod over l != k of (y_j - x_l) / (x_k - x_l), shape (n, m).
    """
    q = np.uint64(field.modulus)
    known, wanted = points.astype(np.uint64), places.astype(np.uint64)
    if np.unique([*points, *places]).size != known.size + wanted.size:
        raise ValueError("points and places are not all different")
    if max(points.max(), places.max()) >= field.modulus:
        raise ValueError(f"{field.name} has no more than {field.modulus} points")
    products = np.ones(wanted.size, np.uint64)
    for point in known:
        products = products * ((wanted + q - point) % q) % q
    factors = (wanted[:, None] + q - known) % q * difference_products(known, field) % q
    return products[:, None] * inverse(factors, field) % q


def difference_products(
    points: NDArray[np.uint64], field: Field = FQ, present: NDArray[np.bool_] | None = None
) -> NDArray[np.uint64]:
    """Return prod over j != k of (x_k - x_j), for each x_k along the last axis.

    `present`, shape (P, m) for P patterns of the same m points, selects the x_j in the product.
    """
    q = np.uint64(field.modulus)
    products = np.ones(points.shape if present is None else present.shape, np.uint64)
    for j in range(points.shape[-1]):
        differences = (points + q - points[..., j : j + 1]) % q
        differences[..., j] = 1
        if present is not None:
            differences = np.where(present[..., j : j + 1], differences, np.uint64(1))
        products = products * differences % q
    return products


def inverse(values: NDArray[np.uint64], field: Field = FQ) -> NDArray[np.uint64]:
    """Return the inverses of nonzero elements, computed as x**(q - 2) (Fermat)."""
    q = np.uint64(field.modulus)
    result = np.ones_like(values)
    power = values.copy()
    exponent = field.modulus - 2
    while exponent:
        if exponent & 1:
            result = result * power % q
        power = power * power % q
        exponent >>= 1
    return result


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread."""
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """Return the controller of the loaded libraries' thread counts."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
