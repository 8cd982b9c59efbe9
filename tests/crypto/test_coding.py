"""Wrong values of polynomials are found, as many as a Reed-Solomon code can correct."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.algorithms.aggregation.reconstruction import Shares, reconcile
from hpcfl.crypto.coding import wrong_places
from hpcfl.crypto.groups import FIELDS, FQ

ALL_FIELDS = [*FIELDS.values(), FQ]


def value_at(coefficients, point, modulus):
    """Return a polynomial's value, by Horner in whole numbers."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % modulus
    return value


@pytest.mark.parametrize("field", ALL_FIELDS, ids=lambda field: field.name)
@given(st.data())
def test_all_wrong_values_are_found_and_no_others(field, data):
    count = data.draw(st.integers(3, 40))
    most = data.draw(st.integers(1, (count - 1) // 2))
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    points = random.choice(np.arange(1, 60), count, replace=False)
    words, expected = [], []
    for _ in range(5):
        coefficients = random.integers(0, field.modulus, count - 2 * most).tolist()
        word = [value_at(coefficients, int(x), field.modulus) for x in points]
        wrong = np.zeros(count, bool)
        # Off by the same, by a polynomial of a higher degree, or by anything.
        places = random.permutation(count)[: data.draw(st.integers(0, most))]
        wrong[places] = True
        offsets = {
            "same": np.ones(count, np.int64),
            "powers": [pow(int(x), count - 2 * most, field.modulus) for x in points],
            "anything": random.integers(1, field.modulus, count),
        }[data.draw(st.sampled_from(["same", "powers", "anything"]))]
        for place in places:
            word[place] = (word[place] + int(offsets[place])) % field.modulus
        words.append(word)
        expected.append(wrong)
    found = wrong_places(np.array(words, field.dtype), points, most, field)
    assert np.array_equal(expected, found)


def test_one_word_more_wrong_than_can_be_told_says_nothing_of_the_others():
    points, field = np.arange(1, 10), FQ
    words = np.zeros((2, 9), np.uint32)
    words[0, :4] = [7, 8, 9, 10]
    words[1, 2] = 1
    assert [2] == np.flatnonzero(wrong_places(words, points, 3, field)[1]).tolist()


def test_values_that_are_wrong_at_more_places_together_than_each_leave_nothing():
    """The t that are left would fit, whatever they are."""
    count, threshold = 14, 8
    values = np.zeros((1, count, 2), np.uint32)
    values[0, :3, 0] = values[0, 3:6, 1] = [5, 6, 7]
    holders, received = np.arange(count), np.ones((1, count), bool)
    shares = Shares(holders[:1], holders[None], holders, received, values, count)
    assert not reconcile(shares, threshold).received.any()
    values[0, 3:6, 1] = 0
    assert [3] == (~reconcile(shares, threshold).received).sum(axis=1).tolist()
