"""Degree and threshold of a ring: bounds against simulated rings, and the smallest that will do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hpcfl.errors import UsageError
from hpcfl.privacy.population import Population
from hpcfl.privacy.ring import best_threshold, choose, failures

# A test of a mean fails once in a million seeds although all is right.
QUANTILE = float(stats.norm.isf(5e-7))
RINGS = 4000


def simulated(population: Population, degree: int, threshold: int) -> dict[str, np.ndarray]:
    """Return, for many random rings, how many devices (or runs) fail, and whether any does."""
    devices, half = population.devices, degree // 2
    generator = np.random.default_rng(3)
    found: dict[str, list[int]] = {"revealed": [], "stuck": [], "runs": [], "split": []}
    for _ in range(RINGS):
        order = generator.permutation(devices)
        colluding = order < population.colluding
        # None of the colluding drop out: the worst case, which the bounds are for.
        gone = (order >= population.colluding) & (order < population.colluding + population.dropped)
        around = [np.roll(np.arange(devices), -k) for k in range(-half, half + 1) if k]
        bad = sum(colluding[place].astype(int) for place in around)
        alive = sum((~gone[place]).astype(int) for place in around)
        found["revealed"].append(int((~colluding & (bad >= threshold)).sum()))
        found["stuck"].append(int((gone & (alive < threshold)).sum()))
        away = colluding | gone
        runs = sum(int(away[(start + np.arange(half)) % devices].all()) for start in range(devices))
        found["runs"].append(runs)
        found["split"].append(int(components(~away, half) > 1))
    return {name: np.array(values) for name, values in found.items()}


def components(present: np.ndarray, half: int) -> int:
    """Return the number of connected parts of the devices that are present on a ring."""
    places = np.flatnonzero(present).tolist()
    seen: set[int] = set()
    count = 0
    for first in places:
        if first in seen:
            continue
        count += 1
        waiting = [first]
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            waiting += [
                other
                for k in range(-half, half + 1)
                if present[other := (place + k) % present.size] and other not in seen
            ]
    return count


def assert_mean(expected: float, samples: np.ndarray) -> None:
    margin = QUANTILE * samples.std(ddof=1) / np.sqrt(samples.size)
    assert 0 < margin < 0.5 * expected
    assert abs(samples.mean() - expected) <= margin


def test_every_bound_is_the_expected_number_of_failures() -> None:
    """So each is at least the probability of any, and not above what the union bound costs."""
    population = Population(40, 4, 0.15)
    low, high = failures(population, 6, 3), failures(population, 6, 4)
    assert max(low.revealed, high.stuck, low.split) < 1

    assert_mean(low.revealed, simulated(population, 6, 3)["revealed"])
    # The bound counts all N devices as if each had dropped out.
    assert_mean(high.stuck * population.dropped / 40, simulated(population, 6, 4)["stuck"])


def test_the_honest_are_only_split_where_half_a_degree_in_a_row_is_gone() -> None:
    population = Population(30, 3, 0.3)
    found = failures(population, 8, 3)
    seen = simulated(population, 8, 3)

    assert_mean(found.split, seen["runs"])
    assert seen["split"].sum() > 10
    assert (seen["runs"][seen["split"] > 0] >= 2).all()


@pytest.mark.parametrize("devices", [50, 100, 300, 1000, 10_000])
@pytest.mark.parametrize(("gamma", "dropout"), [(0.05, 0.3), (0.1, 0.1), (0.3, 0.2)])
def test_the_smallest_degree_that_keeps_all_promises_is_chosen(
    devices: int, gamma: float, dropout: float
) -> None:
    population = Population(devices, int(gamma * devices), dropout)
    chosen = choose(population, 30, 15)

    def kept(degree: int, threshold: int) -> bool:
        found = failures(population, degree, threshold)
        return max(found.revealed, found.split) <= 2.0**-30 and found.stuck <= 2.0**-15

    if chosen.degree < devices - 1:
        assert kept(chosen.degree, chosen.threshold)
        assert not kept(chosen.degree, chosen.threshold + 1)
        smaller = chosen.degree - 2
    else:
        assert chosen.threshold == devices // 2 + 1
        smaller = (devices - 2) // 2 * 2
    assert not any(kept(smaller, t) for t in range(1, smaller + 1))


def test_degrees_grow_as_the_logarithm_of_the_devices() -> None:
    degrees = [choose(Population(n, n // 10, 0.3), 40, 20).degree for n in (1000, 10_000)]

    assert degrees[0] < degrees[1] < 1.4 * degrees[0]


def test_the_complete_graph_fails_in_nothing_below_the_threshold() -> None:
    found = failures(Population(100, 33, 0.3), 99, 51)

    assert (found.revealed, found.split, found.stuck) == (0, 0, 0)
    assert failures(Population(100, 33, 0.3), 99, 33).revealed == pytest.approx(1)
    assert failures(Population(100, 33, 0.3), 99, 71).stuck == pytest.approx(1)
    assert best_threshold(Population(100, 33, 0.3), 99) == 51


def test_the_best_threshold_of_a_degree_lies_between_the_colluding_and_the_surviving() -> None:
    population = Population(1000, 100, 0.3)
    best = best_threshold(population, 40)
    total = [f.revealed + f.stuck for f in (failures(population, 40, t) for t in range(1, 41))]

    assert 4 < best < 28
    assert total[best - 1] == min(total)


@pytest.mark.parametrize("degree", [0, 5, 100, 101])
def test_impossible_degrees_are_refused(degree: int) -> None:
    with pytest.raises(UsageError, match=f"100 devices cannot have {degree} neighbours each"):
        failures(Population(100, 10, 0.1), degree, 2)


def test_a_revealed_secret_and_split_honest_devices_are_bounded_together() -> None:
    """With 200 devices, 66 colluding and 40 gone, each would do with 88 neighbours: not both."""
    population = Population(200, 66, 0.2)
    chosen = choose(population, 40, 20)
    less = failures(population, 88, 55)

    assert max(less.revealed, less.split) <= 2.0**-40 < less.revealed + less.split
    assert chosen.degree == 90
    assert chosen.revealed + chosen.split <= 2.0**-40
