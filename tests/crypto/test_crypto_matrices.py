"""Products and Lagrange's matrices over F_q, against Python's integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.crypto import matrices
from hpcfl.crypto.groups import GROUPS, Field

Q = 2**32 - 5
EDGES = st.sampled_from([0, 1, 0xFFFF, 0x10000, Q // 2, Q - 1])


@st.composite
def factors(draw):
    rows, terms, columns = (draw(st.integers(1, most)) for most in (4, 6, 5))
    numbers = EDGES | st.integers(0, Q - 1)
    left = draw(st.lists(numbers, min_size=rows * terms, max_size=rows * terms))
    right = draw(st.lists(numbers, min_size=terms * columns, max_size=terms * columns))
    return (
        np.array(left, np.uint64).reshape(rows, terms),
        np.array(right, np.uint32).reshape(terms, columns),
    )


def slow(left, right, modulus=Q):
    return [[sum(a * b for a, b in zip(r, c, strict=True)) % modulus for c in right.T.tolist()]
            for r in left.tolist()]  # fmt: skip


@given(factors())
def test_products_are_those_of_python(pair):
    assert slow(*pair) == matrices.product(*pair).tolist()


@pytest.mark.parametrize("shape", [(1, 40_000, 3), (40, 5, 900), (300, 300, 2)])
def test_products_are_exact_over_the_bounds_of_blocks_and_with_the_largest_numbers(shape):
    rows, terms, columns = shape
    left, right = np.full((rows, terms), Q - 1, np.uint64), np.full((terms, columns), Q - 1)
    assert [[terms] * columns] * rows == matrices.product(left, right.astype(np.uint32)).tolist()

    generator = np.random.default_rng(1)
    left = generator.integers(0, Q, (rows, terms), np.uint64)
    right = generator.integers(0, Q, (terms, columns), np.uint32)
    assert slow(left, right) == matrices.product(left, right).tolist()


@pytest.mark.parametrize("field", [group for group in GROUPS.values() if isinstance(group, Field)])
@pytest.mark.parametrize(("rows", "columns"), [(2, 30), (30, 2)])
def test_products_of_as_many_terms_as_are_added_at_once_are_exact(field, rows, columns):
    """Whichever side is split, with the largest numbers, and with all bits of the parts set."""
    terms, top = matrices.TERMS, field.modulus - 1
    for number in (top, min(top, ((1 << field.bits) - 1) & ~(1 << 11)), top >> 1):
        left = np.full((rows, terms), top).astype(field.dtype)
        right = np.full((terms, columns), number).astype(field.dtype)
        expected = [[top * number * terms % field.modulus] * columns] * rows
        assert expected == matrices.product(left, right, field).tolist()
        assert expected == matrices.product(left.astype(np.float64), right, field).tolist()
    draw = np.random.default_rng(field.bits)
    left = draw.integers(0, field.modulus, (rows, terms)).astype(field.dtype)
    right = draw.integers(0, field.modulus, (terms, columns)).astype(field.dtype)
    assert slow(left, right, field.modulus) == matrices.product(left, right, field).tolist()


@given(st.lists(st.integers(0, 2000), min_size=2, max_size=12, unique=True), st.data())
def test_lagranges_matrix_turns_values_of_a_polynomial_into_those_elsewhere(points, data):
    count = data.draw(st.integers(1, len(points) - 1))
    known, wanted = np.array(points[:count]), np.array(points[count:])
    coefficients = data.draw(st.lists(st.integers(0, Q - 1), min_size=count, max_size=count))

    def values(places):
        return [sum(c * x**k for k, c in enumerate(coefficients)) % Q for x in places.tolist()]

    found = matrices.product(
        matrices.lagrange(known, wanted), np.array(values(known), np.uint32)[:, None]
    )
    assert values(wanted) == found[:, 0].tolist()


@pytest.mark.parametrize(("points", "places"), [([1, 1], [2]), ([1, 2], [3, 2])])
def test_points_that_are_not_all_different_are_refused(points, places):
    with pytest.raises(ValueError, match="not all different"):
        matrices.lagrange(np.array(points), np.array(places))


def test_a_field_has_no_more_points_than_elements():
    field = GROUPS["field8"]
    with pytest.raises(ValueError, match="no more than 251 points"):
        matrices.lagrange(np.array([1, field.modulus]), np.array([2]), field)
