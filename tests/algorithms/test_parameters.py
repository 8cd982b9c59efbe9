"""Parameters that cannot work are refused in a sentence; the others give the documented numbers."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcfl.algorithms.aggregation.sparse import SparseSecAgg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError
from hpcfl.options.shared import DIM


def make(**changes):
    return Parameters(**{"devices": 4, "dim": 10, **changes})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("dim", 2**32, f"--dim is {2**32}; .* at most {DIM['at_most']}"),
        ("group", "fp", "--group is 'fp'; choose one of fq, ring8"),
    ],
)
def test_a_bad_value_is_refused_in_a_sentence_that_names_it(name, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        make(**{name: value})


@pytest.mark.parametrize(
    ("devices", "threshold"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (99, 50), (100, 51)]
)
def test_the_threshold_is_more_than_half_of_the_devices(devices, threshold):
    assert threshold == make(devices=devices).threshold
    # The most dropouts that are planned leave at least as many.
    assert devices - math.floor(0.49 * devices) >= threshold
    assert make(devices=devices).weight(0) == 1 / devices


@given(devices=st.integers(2, 300), alpha=st.floats(1e-6, 1))
@example(devices=2, alpha=1.0)
def test_a_coordinate_is_selected_as_the_paper_says(devices, alpha):
    """By a pair with alpha / (N - 1), without rounding; by a device if by any pair of it.

    That is a sum over the peer that is the first to select: pi (1 + x + x**2 + ...).
    """
    chosen = SparseSecAgg(make(devices=devices, alpha=alpha, levels=1))
    assert Fraction(alpha) == chosen.pair_probability * (devices - 1)
    pair = alpha / (devices - 1)
    expected = pair * math.fsum((1 - pair) ** peer for peer in range(devices - 1))
    assert pytest.approx(expected, rel=1e-9) == chosen.inclusion
