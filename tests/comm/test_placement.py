import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.comm.placement import Placement


@given(devices=st.integers(1, 200), ranks=st.integers(2, 40))
def test_devices_are_spread_evenly_over_all_ranks_but_the_first(devices, ranks):
    placement = Placement.even(devices, ranks)
    sizes = [len(placement.local(rank)) for rank in range(ranks)]

    assert (placement.devices, placement.ranks) == (devices, ranks)
    assert sizes[0] == 0
    assert sum(sizes) == devices
    assert max(sizes[1:]) - min(sizes[1:]) <= 1
    for rank in range(ranks):
        assert all(placement.homes[id] == rank for id in placement.local(rank))


def test_a_single_rank_holds_everything():
    placement = Placement.even(7, 1)

    assert list(placement.local(0)) == list(range(7))
    assert placement.homes.tolist() == [0] * 7


@given(devices=st.integers(1, 60), ranks=st.integers(1, 9), data=st.data())
def test_selected_devices_stay_on_their_ranks(devices, ranks, data):
    placement = Placement.even(devices, ranks)
    ids = sorted(data.draw(st.sets(st.integers(0, devices - 1), min_size=1)))
    selected = placement.select(ids)

    np.testing.assert_array_equal(selected.homes, placement.homes[ids])


@pytest.mark.parametrize(("devices", "ranks"), [(3, 9)])
def test_more_ranks_than_devices_leave_some_without(devices, ranks):
    placement = Placement.even(devices, ranks)

    assert sum(len(placement.local(rank)) for rank in range(ranks)) == devices
