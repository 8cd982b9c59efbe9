from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from graphs import honest_survivors
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfl.bench.dropouts import DropoutSchedule
from hpcfl.errors import UsageError
from hpcfl.privacy.cohorts import (
    below_floor_probability,
    cohort_size,
    honest_in_cohort,
    largest_floor,
    smallest_cohort,
)
from hpcfl.privacy.population import Population, count_of

MODELS = ["exact", "bernoulli", "targeted"]


def exact_below(devices: int, honest: int, cohort: int, floor: int) -> Fraction:
    ways = (comb(honest, c) * comb(devices - honest, cohort - c) for c in range(floor))
    return Fraction(sum(ways), comb(devices, cohort))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_honest_survivors_are_those_of_all_cases(model: str, dropout: float) -> None:
    population = Population(7, 2, dropout, model)
    expected = np.zeros(6)
    for honest, likely in honest_survivors(7, 2, dropout, model).items():
        expected[len(honest)] += likely
    survivors, probability = population.honest_survivors()
    found = np.zeros(6)
    found[survivors] = probability

    assert found == pytest.approx(expected, abs=1e-14)
    assert population.mean_honest_survivors == pytest.approx(expected @ np.arange(6))


def test_as_many_drop_out_as_in_a_benchmark() -> None:
    for rate, devices in [(0.29, 100), (0.3, 25), (0.1, 9), (0.07, 100)]:
        schedule = DropoutSchedule(devices, rate, "exact", "masked_input", 0)
        assert Population(devices, 0, rate).dropped == len(schedule.draw(0))


def test_a_probability_is_exact_at_any_size() -> None:
    for devices, colluding, dropout, cohort, floor in [
        (100, 33, 0.3, 20, 3),
        (1000, 333, 0.1, 60, 10),
        (10_000, 3333, 0.3, 300, 50),
    ]:
        population = Population(devices, colluding, dropout, "targeted")
        honest = devices - colluding - population.dropped
        expected = exact_below(devices, honest, cohort, floor)

        assert below_floor_probability(population, cohort, floor) == pytest.approx(
            float(expected), rel=1e-8, abs=0
        )


@pytest.mark.parametrize("model", MODELS)
def test_probability_is_the_mean_over_survivors(model: str) -> None:
    population = Population(9, 3, 0.3, model)
    expected = sum(
        likely * exact_below(9, len(honest), 5, 3)
        for honest, likely in honest_survivors(9, 3, 0.3, model).items()
    )

    assert below_floor_probability(population, 5, 3) == pytest.approx(float(expected), rel=1e-12)
    assert honest_in_cohort(population, 5)[:3].sum() == pytest.approx(float(expected), rel=1e-12)


def test_several_blocks_are_bounded_given_the_survivors() -> None:
    population = Population(9, 3, 0.3, "bernoulli")
    expected = sum(
        likely * min(1, 4 * exact_below(9, len(honest), 6, 2))
        for honest, likely in honest_survivors(9, 3, 0.3, "bernoulli").items()
    )

    assert below_floor_probability(population, 6, 2, 4) == pytest.approx(float(expected), rel=1e-12)
    assert below_floor_probability(population, 6, 2, 10**9) <= 1


@settings(max_examples=30)
@given(st.integers(3, 60), st.integers(1, 6), st.integers(1, 50), st.sampled_from(MODELS))
def test_the_smallest_cohort_keeps_the_floor_and_one_less_does_not(
    devices: int, floor: int, blocks: int, model: str
) -> None:
    population = Population(devices, devices // 3, 0.1, model)
    kept = [
        m
        for m in range(1, devices + 1)
        if below_floor_probability(population, m, floor, blocks) <= 1e-3
    ]
    if kept:
        assert smallest_cohort(population, floor, blocks, 1e-3) == kept[0]
        assert kept == list(range(kept[0], devices + 1))
    else:
        with pytest.raises(UsageError, match="lower floor"):
            smallest_cohort(population, floor, blocks, 1e-3)


@settings(max_examples=30)
@given(st.integers(3, 60), st.integers(1, 50), st.sampled_from(MODELS), st.data())
def test_the_largest_floor_is_kept_and_one_more_is_not(
    devices: int, blocks: int, model: str, data: st.DataObject
) -> None:
    population = Population(devices, devices // 3, 0.1, model)
    cohort = data.draw(st.integers(1, devices))
    kept = [
        floor
        for floor in range(1, cohort + 1)
        if below_floor_probability(population, cohort, floor, blocks) <= 1e-3
    ]

    assert largest_floor(population, cohort, blocks, 1e-3) == max(kept, default=0)


def test_ten_of_a_hundred_are_too_few_for_every_block_to_hide_someone_among_two() -> None:
    population = Population(100, 33, 0.3)

    assert below_floor_probability(population, 10, 2, 162) > 0.99
    assert smallest_cohort(population, 2, 162, 2**-40) == 43


def test_a_floor_above_the_cohort_is_never_kept() -> None:
    assert below_floor_probability(Population(10, 2), 3, 4) == pytest.approx(1)


def test_cohort_sizes_are_rounded_half_up_as_written() -> None:
    assert cohort_size(100, 0.1) == 10
    assert cohort_size(50, 0.25) == 13
    assert cohort_size(50, 0.29) == 15  # 14.5, though 0.29 * 50 is less in binary
    assert cohort_size(25, 0.1) == 3
    assert cohort_size(3, 0.1) == 1
    assert cohort_size(7, 1.0) == 7


def test_fractions_of_devices_are_exact() -> None:
    assert count_of(Fraction(1, 3), 99) == 33
    assert count_of(Fraction(1, 3), 100) == 33
    assert count_of(Fraction("0.29"), 100) == 29


@pytest.mark.parametrize("fraction", [Fraction(-1, 2), Fraction(3, 2)])
def test_impossible_fractions_are_refused(fraction: Fraction) -> None:
    with pytest.raises(UsageError, match="not between 0 and 1"):
        count_of(fraction, 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 0), "at least 2"),
        ((10, -1), "-1 of 10 devices"),
        ((10, 6), "must be 0 to 5"),
        ((10, 0, 0.5), "below 0.5"),
        ((10, 0, -0.1), "at least 0"),
        ((10, 0, float("nan")), "rate is nan"),
        ((10, 0, 0.1, "sometimes"), "choose one of exact, bernoulli, targeted"),
        ((3, 1, 0.4, "targeted"), None),
        ((2, 1, 0.4, "targeted"), None),
        ((9, 4, 0.45, "targeted"), None),
        ((7, 3, 0.45, "targeted"), None),
    ],
)
def test_impossible_populations_are_refused(arguments: tuple, words: str | None) -> None:
    if words is None:
        assert Population(*arguments).mean_honest_survivors > 0
    else:
        with pytest.raises(UsageError, match=words):
            Population(*arguments)


def test_impossible_cohorts_floors_and_failures_are_refused() -> None:
    population = Population(10, 3)
    for call, words in [
        (lambda: below_floor_probability(population, 11, 2), "cohort of 11"),
        (lambda: below_floor_probability(population, 0, 2), "cohort of 0"),
        (lambda: honest_in_cohort(population, 11), "cohort of 11"),
        (lambda: below_floor_probability(population, 5, 0), "floor is 0"),
        (lambda: below_floor_probability(population, 5, 2, 0), "number of blocks is 0"),
        (lambda: smallest_cohort(population, 2, 1, 0.0), "failure probability is 0.0"),
        (lambda: largest_floor(population, 5, 1, 1.0), "failure probability is 1.0"),
        (lambda: smallest_cohort(population, 9, 1, 0.1), "lower floor"),
        (lambda: cohort_size(10, 0.0), "alpha is 0.0"),
    ]:
        with pytest.raises(UsageError, match=words):
            call()
