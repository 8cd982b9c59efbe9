"""Quantisation is unbiased, and no admissible number of levels lets a sum wrap around.

Seeds are fixed, so what passes once passes always. Distributions are tested at the level 1e-8;
there are fewer than 50 such tests, so that together they would raise a false alarm with a
probability below 1e-6 for other seeds.
"""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms.quantisation import BLOCK, Quantiser, check_levels, largest_levels
from hpcfl.crypto.groups import FQ, GROUPS, Field
from hpcfl.errors import UsageError

LEVEL = 1e-8
JUST_BELOW_1 = float(np.nextafter(1, 0))
LARGEST = float(np.finfo(np.float64).max)


class Rounding(np.random.Generator):
    """A generator that always draws the same number: 0 rounds down, nearly 1 rounds up."""

    def __init__(self, drawn):
        super().__init__(np.random.PCG64(0))
        self._drawn = drawn

    def random(self, out):  # type: ignore[override]
        out[:] = float(self._drawn)
        return out


def whole(quantiser, values, scale, generator):
    return np.concatenate([some for _, some, _ in quantiser.blocks(values, scale, generator)])


def quantise(quantiser, values, scale=1.0, drawn=0.0):
    return whole(quantiser, np.array(values), scale, Rounding(drawn)).tolist()


# Rounding


def rounded(values, draws, norm=None):
    """Return the integers of a vector in steps of the rounding, which nothing clips."""
    quantiser, integers = Quantiser(LARGEST, 1), np.empty(len(values), np.int64)
    for part, block, _ in quantiser.blocks(np.array(values), 1.0, draws, norm):
        integers[part] = block
    return integers


@given(
    values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30),
    drawn=st.sampled_from([0.0, 0.5, JUST_BELOW_1]),
    longer=st.floats(0, 3),
)
def test_integers_are_no_longer_than_the_norm_whatever_is_drawn(values, drawn, longer):
    norm = float(np.linalg.norm(values)) * (1 + 1e-9) + longer
    integers = rounded(values, Rounding(drawn), norm)

    assert np.linalg.norm(integers) <= norm
    assert (np.abs(integers - np.array(values)) < 1 + 1e-9).all()


def test_only_the_blocks_that_would_be_too_long_are_rounded_towards_zero():
    """A half that is rounded up adds 3/4 to the square, one that is rounded to 0 takes 1/4."""
    values = np.full(5 * BLOCK, -0.5)
    norm = math.sqrt(5 * BLOCK / 4 + 2.4 * BLOCK * 3 / 4)
    integers = rounded(values, Rounding(0.0), norm).reshape(5, BLOCK)

    # Two blocks are as drawn; it takes two that are rounded to 0 to have room for another one.
    assert integers.min(axis=1).tolist() == [-1, -1, 0, 0, -1]
    assert np.array_equal(integers.min(axis=1), integers.max(axis=1))


@pytest.mark.parametrize(
    ("value", "levels", "scale"),
    [(0.3, 1, 1.0), (-0.999, 1, 1.0), (-0.4, 2**20, 0.01 / 0.0666)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_unbiased_and_each_coordinates_own(value, levels, scale, dtype):
    """The probability of rounding up is the fractional part; 0.6 % off would show at one half."""
    values = np.full(1_000_000, value, dtype)
    before = values.copy()
    quantised = whole(Quantiser(1.0, levels), values, scale, np.random.default_rng(1))
    assert np.dtype(np.int64) == quantised.dtype
    assert np.array_equal(before, values)
    exact = float(values[0]) * (scale * levels)
    up = quantised - math.floor(exact)
    assert {0, 1} == {*up.tolist()}
    probability = exact - math.floor(exact)
    assert stats.binomtest(int(up.sum()), values.size, probability).pvalue > LEVEL
    both = int((up[::2] & up[1::2]).sum())
    assert stats.binomtest(both, values.size // 2, probability**2).pvalue > LEVEL


# Clipping


def test_values_beyond_the_clip_count_as_the_clip():
    quantiser = Quantiser(0.5, 64)
    values = [0.5, 0.75, 1e30, 1e300, -0.5, -0.75, -1e30, -1e300, 0.25, -0.25]
    expected = [32] * 4 + [-32] * 4 + [16, -16]
    assert expected == quantise(quantiser, values)
    assert [2 * integer for integer in expected] == quantise(quantiser, values, scale=2.0)
    # Even if they overflow when they are added up.
    assert [32, 32, -32] == quantise(quantiser, [LARGEST, LARGEST, -LARGEST])


# The largest number of levels


def decoded_sum(group, levels, clip, scales, sign, dtype):
    """Return what the devices' largest vectors add up to, as an integer and out of the group.

    Every device sends the clip with one sign and rounds away from zero.
    """
    away = Rounding(JUST_BELOW_1 if sign > 0 else 0.0)
    quantiser, values = Quantiser(clip, levels), np.full(1, sign * 1e38, dtype)
    total, exact = np.zeros(1, group.dtype), 0
    for scale in scales:
        integers = whole(quantiser, values, scale, away)
        exact += int(integers[0])
        group.add_into(total, group.reduce(integers))
    return exact, int(group.decode(total)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    group=st.sampled_from([*GROUPS.values()]),
    weights=st.lists(st.integers(1, 100), min_size=1, max_size=60),
    clip=st.floats(1e-4, 1e4),
    inclusion=st.floats(1e-3, 1),
    sign=st.sampled_from([1, -1]),
)
def test_with_the_largest_levels_the_largest_sum_is_decoded(
    dtype, group, weights, clip, inclusion, sign
):
    levels = largest_levels(group, len(weights), clip, inclusion)
    scales = [weight / sum(weights) / inclusion for weight in weights]
    exact, decoded = decoded_sum(group, levels, clip, scales, sign, dtype)
    assert exact == decoded


def test_the_largest_levels_are_within_a_rounding_per_device_of_the_first_that_wrap():
    for group, devices, (clip, inclusion), sign in product(
        GROUPS.values(), (1, 3, 100), ((1.0, 1.0), (0.25, 0.5), (300.0, 0.0667)), (1, -1)
    ):
        largest = largest_levels(group, devices, clip, inclusion)
        wrapping = math.ceil((group.half_range + 2) * inclusion / clip)
        assert 0 < wrapping - largest <= math.ceil((devices + 2) * inclusion / clip) + 1
        scales = [1 / devices / inclusion] * devices
        exact, decoded = decoded_sum(group, wrapping, clip, scales, sign, np.float64)
        assert abs(exact) > group.half_range
        assert exact != decoded


def test_the_bound_is_exact_where_it_is_an_integer():
    assert FQ.half_range - 7 == largest_levels(FQ, 7, 1.0, 1.0)
    assert (GROUPS["ring32"].half_range - 7) * 2 == largest_levels(GROUPS["ring32"], 7, 0.5, 1.0)
    for clip in (1e-300, 5e-324):
        assert 2**62 == largest_levels(FQ, 30, clip, 1.0)
    small = Field(127, "small")
    assert (small.half_range - 3) // 6 == largest_levels(small, 3, 6.0, 1.0)
    assert (small.half_range - 3) * 2 == largest_levels(small, 3, 1.0, 1.0, weight=0.5)
    assert small.half_range - 3 - 10 == largest_levels(small, 3, 1.0, 1.0, reserve=10)


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_levels_are_refused_from_the_first_inadmissible_number_on(group):
    largest = largest_levels(group, 10, 1.0, 0.0667)
    check_levels(largest, largest, group, 1.0)
    sentence = rf"^levels {largest + 1} with clip 1 .* {group.name}: .* of levels is {largest}$"
    with pytest.raises(UsageError, match=sentence):
        check_levels(largest + 1, largest, group, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_that_is_not_a_finite_number_is_refused(value, dtype):
    """Also where infinities of both signs add up to no number, or hide one another."""
    for values in ([0.5, value], [value, -value], [value] * 3, [value, 1e38, -1e38]):
        with pytest.raises(ValueError, match="a value that is not a finite number"):
            whole(Quantiser(1.0, 10), np.array(values, dtype), 1.0, Rounding(0.5))
