"""Who takes part in a round, and who drops out of it: drawn alike, whatever for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms.federated.participation import Participation
from hpcfl.errors import UsageError
from hpcfl.rounds.build import DropoutSchedule


def participants(devices, part, by_chance=False, seed=0):
    per_round = round(part * devices)
    return Participation(devices, per_round, "poisson" if by_chance else "exact", seed)


def dropouts(devices, part, by_chance=False, seed=0):
    model = "bernoulli" if by_chance else "exact"
    return DropoutSchedule(devices, part, model, "masked_input", seed)


each = pytest.mark.parametrize("of", [participants, dropouts])


@each
def test_an_exact_number_is_drawn_and_each_device_equally_often(of):
    counts = np.zeros(10)
    for index in range(2000):
        drawn = sorted(of(10, 0.3).draw(index))
        assert len({*drawn}) == len(drawn) == 3
        counts[drawn] += 1

    # Chi-square over 10 devices; the seed is fixed, so this either holds or does not.
    assert stats.chisquare(counts).pvalue > 1e-6


@each
def test_by_chance_each_device_is_drawn_by_itself(of):
    sizes = [len(of(50, 0.3, by_chance=True).draw(index)) for index in range(2000)]

    assert stats.binomtest(sum(sizes), 50 * len(sizes), 0.3).pvalue > 1e-6
    assert len({*sizes}) > 5


@each
@pytest.mark.parametrize("by_chance", [False, True])
def test_the_draw_depends_on_seed_and_round_only(of, by_chance):
    def draw(seed, index):
        return sorted(of(100, 0.3, by_chance, seed).draw(index))

    assert draw(1, 4) == draw(1, 4)
    assert draw(1, 4) != draw(1, 5)
    assert draw(1, 4) != draw(2, 4)


@pytest.mark.parametrize(
    ("devices", "rate", "dropped"), [(100, 0.3, 30), (100, 0.29, 29), (7, 0.49, 3), (5, 0.0, 0)]
)
def test_exact_drops_the_floor_of_the_rate_as_it_was_written(devices, rate, dropped):
    for index in range(5):
        assert len(dropouts(devices, rate).draw(index)) == dropped


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
        # All take part if as many are asked for.
        assert per_round < devices or len(drawn) == devices
        if mode == "balanced":
            assert counts.max() - counts.min() <= 1
            assert len(drawn) == per_round
        counts[drawn] += 1
