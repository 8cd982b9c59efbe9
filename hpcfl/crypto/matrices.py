"""Exact products of matrices over prime fields, and Lagrange's matrices.

BLAS adds up products of numbers of 16 bits without rounding: in float64 a sum of 2**20 of them is
exact. Longer ones are cut into halves. For F_q that takes a quarter of the time of NumPy's products
of integers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import FQ, Elements, Field

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Terms at a time: so many are exact by far, and few rows of their halves take little memory.
TERMS = 1 << 14
# Elements at a time, of the product and, where it has few columns, of the left matrix: they stay in
# cache, and are many enough that calls of NumPy, of which a block takes a dozen, cost little.
BLOCK, FEWEST = 1 << 15, 128

Halves = NDArray[np.float64]


def product(left: Elements, right: Elements, field: Field = FQ) -> Elements:
    """Return ``left @ right``, of elements of a field."""
    rows, columns = len(left), right.shape[1]
    found = np.zeros((rows, columns), field.dtype)
    add_product = _add_short_product if field.bits <= 16 else _add_product
    at_once = TERMS if columns > FEWEST else _at_once(rows)
    # Threads of BLAS would work in CPU time that nobody accounts for, on cores of other ranks.
    with _blas().limit(limits=1, user_api="blas"):
        for start in range(0, len(right), at_once):
            terms = slice(start, start + at_once)
            add_product(found, left[:, terms], right[terms], field)
    return found


def _add_short_product(found: Elements, left: Elements, right: Elements, field: Field) -> None:
    """Add a product of at most `TERMS` terms, of no more than 16 bits, to `found` in place."""
    numbers = left.astype(np.float64)
    at_once = _at_once(len(left))
    for start in range(0, right.shape[1], at_once):
        block = slice(start, start + at_once)
        sums = (numbers @ right[:, block].astype(np.float64)).astype(np.int64)
        sums += found[:, block]
        _reduce(sums, np.empty_like(sums), field)
        found[:, block] = sums


def _add_product(found: Elements, left: Elements, right: Elements, field: Field) -> None:
    """Add a product of at most `TERMS` terms to `found` in place."""
    (rows, terms), columns = left.shape, right.shape[1]
    # 5 in F_q, and less than 2**14 in all fields.
    beyond = 2**32 % field.modulus
    # The lower halves of all rows, then the upper ones.
    halves = _halves(left).reshape(2 * rows, -1)
    at_once = min(_at_once(rows), columns)
    # The same memory for all blocks: to get new one takes longer than to fill it.
    of_right = np.empty((2, terms * at_once))
    products = np.empty((2, 2 * rows * at_once))
    sums = np.empty((2, rows * at_once), np.int64)
    for start in range(0, columns, at_once):
        block = slice(start, start + at_once)
        some = right[:, block]
        width = some.shape[1]
        lower, upper = of_right[:, : terms * width].reshape(2, terms, width)
        np.bitwise_and(some, 0xFFFF, out=lower, casting="unsafe")
        np.right_shift(some, 16, out=upper, casting="unsafe")
        by_lower, by_upper = products[:, : 2 * rows * width].reshape(2, 2 * rows, width)
        np.matmul(halves, lower, out=by_lower)
        np.matmul(halves, upper, out=by_upper)
        total, other = sums[:, : rows * width].reshape(2, rows, width)
        np.add(by_lower[rows:], by_upper[:rows], out=total, casting="unsafe")
        _reduce(total, other, field)
        total <<= 16
        other[:] = by_lower[:rows]
        total += other
        other[:] = by_upper[rows:]
        other *= beyond
        total += other
        total += found[:, block]
        _reduce(total, other, field)
        found[:, block] = total


def _at_once(rows: int) -> int:
    """Return how many columns, or terms, of so many rows are worked on at a time."""
    return max(FEWEST, BLOCK // max(rows, 1))


def _reduce(values: NDArray[np.int64], other: NDArray[np.int64], field: Field) -> None:
    """Make elements of numbers in place, with memory for as many others."""
    np.floor_divide(values, field.modulus, out=other)
    other *= field.modulus
    values -= other


def lagrange(
    points: NDArray[np.int64], places: NDArray[np.int64], field: Field = FQ
) -> NDArray[np.uint64]:
    """Return the matrix that turns values of a polynomial at some points into those elsewhere.

    For m points x, the degree being below m, and n places y, all of them different elements of the
    field, its entries are prod over l != k of (y_j - x_l) / (x_k - x_l), shape (n, m).
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

    Only points that are `present` are factors, of shape (P, m) for P patterns of the same m points.
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
    """Return the inverses of elements that are not zero: their powers q - 2 (Fermat)."""
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


def _halves(matrix: Elements) -> Halves:
    """Return the lower and the upper 16 bits of each number, shape (2, *its shape)."""
    words = matrix.astype(np.uint32, copy=False)
    halves = np.empty((2, *matrix.shape))
    halves[0] = words & np.uint32(0xFFFF)
    halves[1] = words >> np.uint32(16)
    return halves


@cache
def _blas() -> ThreadpoolController:
    """Return what sets the number of threads of the libraries that are loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
