"""The most levels are found, whatever they are guessed to be."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.algorithms.federated.levels import largest_levels
from hpcfl.errors import UsageError

LARGEST = 2**20


def searched(most, guess):
    """Return what is found where so many levels have room, and how many were tried."""
    tried = []

    def build(levels):
        tried.append(levels)
        if levels > most and len(tried) > 1:
            raise UsageError("there is no room")
        return SimpleNamespace(
            check_noise=lambda: None,
            hidden_failure=lambda: 0.0,
            largest_levels=lambda: LARGEST,
            summed_in=SimpleNamespace(name="ring32"),
        )

    return largest_levels(build, lambda protocol: [], guess), len(tried) - 1


@given(st.integers(1, 2 * LARGEST), st.none() | st.integers(-5, 2 * LARGEST))
def test_the_most_levels_are_found_from_any_guess(most, guess):
    found, tried = searched(most, guess)

    assert found == min(most, LARGEST)
    assert tried <= 45  # a step for each of 20 bits there and back, and a few


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_good_guess_is_not_searched_for_again(off):
    assert searched(700_000, 700_000 + off)[1] <= 6


def test_no_levels_are_refused_whatever_the_guess():
    for guess in (None, 1, 1000):
        with pytest.raises(UsageError, match="no number of levels leaves room"):
            searched(0, guess)
