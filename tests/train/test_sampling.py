from __future__ import annotations

import pytest
from scipy import stats

from hpcfl.errors import UsageError
from hpcfl.train.sampling import DeviceSampling


def test_all_devices_take_part_if_as_many_are_asked_for() -> None:
    assert DeviceSampling(5, 5, "poisson", 0).draw(3) == [0, 1, 2, 3, 4]


def test_exact_takes_that_many_and_each_equally_often() -> None:
    counts = [0] * 10
    for round_index in range(2000):
        drawn = DeviceSampling(10, 3, "exact", 0).draw(round_index)
        assert len(set(drawn)) == 3
        assert drawn == sorted(drawn)
        for device in drawn:
            counts[device] += 1

    # The seed is fixed, so this either holds or does not.
    assert stats.chisquare(counts).pvalue > 1e-6


def test_poisson_takes_each_device_by_chance() -> None:
    sizes = [len(DeviceSampling(50, 10, "poisson", 0).draw(index)) for index in range(2000)]

    assert stats.binomtest(sum(sizes), 50 * len(sizes), 0.2).pvalue > 1e-6
    assert len(set(sizes)) > 5


def test_the_draw_depends_on_seed_and_round_only() -> None:
    def draw(seed: int, index: int) -> list[int]:
        return DeviceSampling(100, 20, "exact", seed).draw(index)

    assert draw(1, 4) == draw(1, 4)
    assert draw(1, 4) != draw(1, 5)
    assert draw(1, 4) != draw(2, 4)


@pytest.mark.parametrize("per_round", [0, 6])
def test_more_devices_a_round_than_there_are_is_refused(per_round: int) -> None:
    with pytest.raises(UsageError, match=f"{per_round} devices a round are asked for; there are 5"):
        DeviceSampling(5, per_round, "exact", 0)
