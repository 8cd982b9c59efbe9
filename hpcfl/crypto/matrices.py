"""Exact matrix products over prime fields, and Lagrange interpolation matrices.

BLAS adds up products of 16-bit numbers without rounding: in float64 a sum of 2**20 of them is
exact. Longer numbers are split into 16-bit halves. For F_q this takes a quarter of the time of
NumPy's integer products.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import FQ, Elements, Field

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Terms at a time: their sums are exact by a wide margin, and their halves take little memory.
TERMS = 1 << 14
# Elements at a time, of the product or, if it has few columns, of the left matrix. They stay in
# cache, and are enough to outweigh the dozen NumPy calls per block.
BLOCK, FEWEST = 1 << 15, 128

Floats = NDArray[np.float64]


def product(left: Elements, right: Elements, field: Field = FQ) -> Elements:
    """Return ``left @ right``, of elements of a field."""
    rows, columns = len(left), right.shape[1]
    found = np.zeros((rows, columns), field.dtype)
    few = max(FEWEST, BLOCK // max(rows, 1))
    at_once = TERMS if columns > FEWEST else few
    # BLAS threads would use unmeasured CPU time, on cores that belong to other ranks.
    with _blas().limit(limits=1, user_api="blas"):
        for start in range(0, len(right), at_once):
            terms = slice(start, start + at_once)
            parts = _parts(left[:, terms], field)
            for first in range(0, columns, few):
                block = slice(first, first + few)
                sums = _sums(parts, _parts(right[terms, block], field), field)
                sums += found[:, block]
                found[:, block] = _reduced(sums, field)
    return found


def _parts(matrix: Elements, field: Field) -> list[Floats]:
    """Return elements as 16-bit numbers: as they are, or their lower and upper halves."""
    if field.bits <= 16:
        return [matrix.astype(np.float64)]
    words = matrix.astype(np.uint32, copy=False)
    return [(words & 0xFFFF).astype(np.float64), (words >> 16).astype(np.float64)]


def _sums(left: list[Floats], right: list[Floats], field: Field) -> NDArray[np.int64]:
    """Return a product of at most `TERMS` terms, up to multiples of the modulus."""
    sums = (left[0] @ right[0]).astype(np.int64)
    if field.bits > 16:
        middle = left[0] @ right[1]
        middle += left[1] @ right[0]
        sums += _reduced(middle.astype(np.int64), field) << 16
        # 2**32 is congruent to 5 in F_q, and to less than 2**14 in all fields.
        sums += (left[1] @ right[1]).astype(np.int64) * (2**32 % field.modulus)
    return sums


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


@cache
def _blas() -> ThreadpoolController:
    """Return the controller of the loaded libraries' thread counts."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
