"""How finely vectors are rounded: as finely as there is room for."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.algorithms.federated.levels import largest_levels
from hpcfl.errors import UsageError

LARGEST = 2**20


def searched(most):
    """Return what is found where so many levels have room."""
    one = SimpleNamespace(
        hidden_failure=lambda: 0.0,
        largest_levels=lambda: LARGEST,
        summed_in=SimpleNamespace(name="ring32"),
    )

    def check(levels):
        if levels > most:
            raise UsageError("there is no room")

    return largest_levels(one, check)


@given(st.integers(1, 2 * LARGEST))
def test_the_most_levels_are_found(most):
    assert searched(most) == min(most, LARGEST)


def test_no_levels_are_refused():
    with pytest.raises(UsageError, match="no number of levels leaves room"):
        searched(0)
