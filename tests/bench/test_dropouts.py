import pytest
from scipy import stats

from hpcfl.rounds.build import DropoutSchedule


def schedule(devices, rate, model="exact", seed=0):
    return DropoutSchedule(devices, rate, model, "masked_input", seed)


@pytest.mark.parametrize(
    ("devices", "rate", "dropped"), [(100, 0.3, 30), (100, 0.29, 29), (7, 0.49, 3), (5, 0.0, 0)]
)
def test_exact_drops_the_floor_of_the_rate_as_it_was_written(devices, rate, dropped):
    for round_index in range(5):
        assert len(schedule(devices, rate).draw(round_index)) == dropped


def test_exact_drops_every_device_equally_often():
    rounds = 2000
    counts = [0] * 10
    for round_index in range(rounds):
        for device in schedule(10, 0.3).draw(round_index):
            counts[device] += 1

    # Chi-square over 10 devices; the seed is fixed, so this either holds or does not.
    assert stats.chisquare(counts).pvalue > 1e-6


def test_bernoulli_drops_each_device_by_chance():
    counts = [len(schedule(50, 0.3, "bernoulli").draw(index)) for index in range(2000)]
    dropped, total = sum(counts), 50 * len(counts)

    assert stats.binomtest(dropped, total, 0.3).pvalue > 1e-6
    assert len(set(counts)) > 5


def test_the_draw_depends_on_seed_and_round_only():
    one, other = schedule(100, 0.3, seed=1), schedule(100, 0.3, seed=2)

    assert one.draw(4) == schedule(100, 0.3, seed=1).draw(4)
    assert one.draw(4) != one.draw(5)
    assert one.draw(4) != other.draw(4)
