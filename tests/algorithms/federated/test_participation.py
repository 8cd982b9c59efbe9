from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms.federated.participation import Participation
from hpcfl.errors import UsageError


def test_exact_takes_that_many_and_each_equally_often():
    counts = [0] * 10
    for round_index in range(2000):
        drawn = Participation(10, 3, "exact", 0).draw(round_index)
        assert len(set(drawn)) == 3
        assert drawn == sorted(drawn)
        for device in drawn:
            counts[device] += 1

    # The seed is fixed, so this either holds or does not.
    assert stats.chisquare(counts).pvalue > 1e-6


def test_poisson_takes_each_device_by_chance():
    sizes = [len(Participation(50, 10, "poisson", 0).draw(index)) for index in range(2000)]

    assert stats.binomtest(sum(sizes), 50 * len(sizes), 0.2).pvalue > 1e-6
    assert len(set(sizes)) > 5


def test_the_draw_depends_on_seed_and_round_only():
    def draw(seed, index):
        return Participation(100, 20, "exact", seed).draw(index)

    assert draw(1, 4) == draw(1, 4)
    assert draw(1, 4) != draw(1, 5)
    assert draw(1, 4) != draw(2, 4)
    # All take part if as many are asked for.
    assert [0, 1, 2, 3, 4] == Participation(5, 5, "poisson", 0).draw(3)


@pytest.mark.parametrize("per_round", [0, 6])
def test_more_devices_a_round_than_there_are_is_refused(per_round):
    with pytest.raises(UsageError, match=f"{per_round} devices a round are asked for; there are 5"):
        Participation(5, per_round, "exact", 0)


@pytest.mark.parametrize("mode", ["balanced", "exact", "poisson"])
@given(devices=st.integers(1, 12), data=st.data())
def test_participations_are_counted_and_balanced_devices_take_turns(mode, devices, data):
    """So that the most that any device takes part in is known without a draw."""
    per_round = data.draw(st.integers(1, devices))
    participation = Participation(devices, per_round, mode, data.draw(st.integers(0, 99)))
    counts = np.zeros(devices, np.int64)
    for index in range(25):
        assert np.array_equal(counts, participation.before(index))
        assert counts.max(initial=0) == participation.most_before(index)
        drawn = participation.draw(index)
        assert sorted(set(drawn)) == drawn
        if mode == "balanced":
            assert counts.max() - counts.min() <= 1
            assert len(drawn) == per_round
        counts[drawn] += 1
