import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.results.statistics import Percentiles


def test_percentiles_of_known_samples():
    # 21 samples: the 95th percentile is exactly the 20th; 4 samples: it is interpolated.
    assert Percentiles.of(range(20, -1, -1)) == Percentiles(median=10, p95=19, max=20)
    four = Percentiles.of([4.0, 1.0, 3.0, 2.0])
    assert (four.median, four.max) == (2.5, 4.0)
    assert four.p95 == pytest.approx(3.85)


def test_one_sample_is_all_its_percentiles():
    assert Percentiles.of([7.5]) == Percentiles(7.5, 7.5, 7.5)


def test_no_samples_give_nan_without_a_warning():
    nothing = Percentiles.of(np.zeros((0, 3)))

    assert all(math.isnan(value) for value in (nothing.median, nothing.p95, nothing.max))


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_independent_of_the_order(samples):
    found = Percentiles.of(samples)

    assert min(samples) <= found.median <= found.p95 <= found.max == max(samples)
    assert Percentiles.of(samples[::-1]) == found
