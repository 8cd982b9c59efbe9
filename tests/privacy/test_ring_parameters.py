"""Degree and threshold of a ring: bounds against all rings there are, and the smallest that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, product
from math import comb

import pytest

from hpcfl.errors import UsageError
from hpcfl.privacy.ring import best_threshold, choose, failures
from hpcfl.privacy.threat import Threat

# A ring: how likely it is, who colludes and who has dropped out, by position.
Flags = tuple[bool, ...]
Rings = Iterator[tuple[Fraction, Flags, Flags]]


def rings(devices: int, colluding: int, dropped: int, population: int) -> Rings:
    """Yield every ring: the devices are drawn from the population, colluders stay, honest drop."""
    for here in range(max(0, devices - population + colluding), min(colluding, devices) + 1):
        ways = comb(colluding, here) * comb(population - colluding, devices - here)
        likely = Fraction(ways, comb(population, devices)) / comb(devices, here)
        for bad in combinations(range(devices), here):
            honest = [place for place in range(devices) if place not in bad]
            leaving = min(dropped, len(honest))
            for gone in combinations(honest, leaving):
                yield (
                    likely / comb(len(honest), leaving),
                    tuple(place in bad for place in range(devices)),
                    tuple(place in gone for place in range(devices)),
                )


def coin_rings(devices: int, rate: Fraction) -> Rings:
    """Yield every ring of devices that all drop out by chance; none colludes."""
    for gone in product([False, True], repeat=devices):
        yield (
            rate ** sum(gone) * (1 - rate) ** (devices - sum(gone)),
            (False,) * devices,
            gone,
        )


def around(flags: Flags, place: int, degree: int) -> int:
    """Return how many of a place's neighbours have a flag."""
    size, half = len(flags), degree // 2
    if degree == size - 1:
        return sum(flags) - flags[place]
    return sum(flags[(place + k) % size] for k in range(-half, half + 1) if k)


def runs(absent: Flags, half: int) -> int:
    """Return how many stretches of `half` places in a row are all absent."""
    size = len(absent)
    return sum(all(absent[(start + k) % size] for k in range(half)) for start in range(size))


def parts(absent: Flags, half: int) -> int:
    """Return into how many parts those who are there fall, linked over up to `half` places."""
    size = len(absent)
    left = {place for place in range(size) if not absent[place]}
    count = 0
    while left:
        count += 1
        waiting = [left.pop()]
        while waiting:
            place = waiting.pop()
            near = {(place + k) % size for k in range(-half, half + 1)} & left
            left -= near
            waiting += near
    return count


def expected(all_rings: Rings, failing: Callable[[Flags, Flags], list[int]]) -> list[float]:
    """Return the expected numbers of failures of several kinds."""
    totals: dict[Fraction, list[int]] = {}
    for likely, bad, gone in all_rings:
        found = failing(bad, gone)
        total = totals.setdefault(likely, [0] * len(found))
        totals[likely] = [sum(pair) for pair in zip(total, found, strict=True)]
    weighted = [[likely * count for count in counts] for likely, counts in totals.items()]
    return [float(sum(column)) for column in zip(*weighted, strict=True)]


def away(bad: Flags, gone: Flags) -> Flags:
    """Return who collude or have dropped out."""
    return tuple(map(any, zip(bad, gone, strict=True)))


# Devices, colluding, dropped, population.
SMALL = [
    (9, 3, 2, 9),
    (8, 0, 3, 8),
    (8, 3, 0, 8),
    (9, 4, 4, 9),
    (8, 4, 2, 13),
    (7, 5, 3, 9),
    (7, 1, 2, 40),
]


@pytest.mark.parametrize("who", SMALL)
@pytest.mark.parametrize("degree", [2, 4, 6])
def test_bounds_are_the_expected_numbers_of_failures_over_all_rings(
    who: tuple[int, int, int, int], degree: int
) -> None:
    """So each is at least the probability of any, and not above what the union bound costs.

    Bounds count devices that may be honest, and that may drop out, as if they were and did.
    """
    devices, colluding, dropped, population = who
    complete = degree == devices - 1
    thresholds = range(1, degree + 2)

    def failing(bad: Flags, gone: Flags) -> list[int]:
        left = tuple(not one for one in gone)
        colluders = [around(bad, place, degree) for place in range(devices) if not bad[place]]
        alive = [around(left, place, degree) for place in range(devices) if gone[place]]
        opened = [sum(count >= t for count in colluders) for t in thresholds]
        # With all others as neighbours, all honest devices have the same ones: one event for all.
        if complete:
            opened = [int(count > 0) for count in opened]
        stuck = [sum(count < t for count in alive) for t in thresholds]
        return [runs(away(bad, gone), degree // 2), *opened, *stuck]

    split, *rest = expected(rings(*who), failing)
    honest = 1.0 if complete else devices if population > devices else devices - colluding
    counted = 1.0 if complete else honest / (devices * (1 - colluding / population))
    for threshold in thresholds:
        found = failures(Threat(*who), degree, threshold)
        revealed, stuck = rest[threshold - 1], rest[degree + threshold]

        assert found.revealed == pytest.approx(min(1.0, counted * revealed), rel=1e-12, abs=1e-15)
        assert found.split == pytest.approx(
            0.0 if complete else min(1.0, split), rel=1e-12, abs=1e-15
        )
        if dropped and population == devices:
            times = (1 if complete else devices) / dropped
            assert found.stuck == pytest.approx(min(1.0, times * stuck), rel=1e-12, abs=1e-15)


def test_the_honest_are_only_split_where_half_a_degree_in_a_row_is_gone() -> None:
    who = (10, 3, 3, 10)
    bound = failures(Threat(*who), 4, 2).split

    def failing(bad: Flags, gone: Flags) -> list[int]:
        apart = parts(away(bad, gone), 2) > 1
        return [apart, apart and runs(away(bad, gone), 2) < 2]

    apart, without = expected(rings(*who), failing)
    assert 0 < apart <= bound
    assert without == 0


@pytest.mark.parametrize("degree", [2, 4, 6])
def test_where_devices_drop_out_by_chance_rings_fail_as_often_as_chance_says(degree: int) -> None:
    devices, rate, most = 8, Fraction(3, 10), 5
    thresholds = range(1, degree + 2)

    def failing(bad: Flags, gone: Flags) -> list[int]:
        left = tuple(not one for one in gone)
        alive = [around(left, place, degree) for place in range(devices) if gone[place]]
        split = sum(gone) <= most and runs(gone, degree // 2) > 0
        return [split, *(sum(count < t for count in alive) for t in thresholds)]

    split, *stuck = expected(coin_rings(devices, rate), failing)
    for threshold in thresholds:
        found = failures(Threat(devices, 0, most, devices, rate=0.3), degree, threshold)
        each = stuck[threshold - 1] / float(rate)
        assert found.stuck == pytest.approx(min(1.0, each), rel=1e-12)
        # More than that seldom drop out, and a round in which they do is another matter.
        assert 0 < split <= found.split


def exactly(honest: int, total: int, marked: int, drawn: int, least: int) -> float:
    """Return a union bound over so many devices that `least` of the drawn are marked, in bits."""
    ways = sum(
        comb(marked, hits) * comb(total - marked, drawn - hits) for hits in range(least, drawn + 1)
    )
    return math.log2(Fraction(honest * ways, comb(total, drawn)))


def test_devices_that_are_drawn_from_a_population_hold_more_colluders_now_and_then() -> None:
    """The degree that was chosen for 10 colluders among 100, in rounds of 100 from 1,000."""
    degree, threshold = 54, 26
    alone = failures(Threat(100, 10, 30, 100), degree, threshold)
    drawn = failures(Threat(100, 100, 30, 1000), degree, threshold)
    split = Fraction(0)
    for bad in range(101):
        likely = Fraction(comb(100, bad) * comb(900, 100 - bad), comb(1000, 100))
        split += likely * Fraction(comb(min(100, bad + 30), 27), comb(100, 27))

    assert math.log2(alone.revealed + alone.split) == pytest.approx(-40.5, abs=0.05)
    assert math.log2(drawn.split) == pytest.approx(math.log2(100 * split), abs=1e-6)
    assert math.log2(drawn.revealed) == pytest.approx(
        exactly(100, 999, 100, degree, threshold), abs=1e-6
    )
    assert math.log2(drawn.revealed + drawn.split) == pytest.approx(-34.4, abs=0.05)


def test_bounds_are_exact_at_any_size() -> None:
    found = failures(Threat(1000, 333, 300, 1000), 150, 80)
    stuck = sum(comb(700, alive) * comb(299, 150 - alive) for alive in range(80))

    assert math.log2(found.revealed) == pytest.approx(exactly(667, 999, 333, 150, 80), abs=1e-6)
    assert math.log2(found.stuck) == pytest.approx(
        math.log2(Fraction(1000 * stuck, comb(999, 150))), abs=1e-6
    )


@pytest.mark.parametrize("devices", [50, 100, 300, 1000, 10_000])
@pytest.mark.parametrize(("gamma", "dropout"), [(0.05, 0.3), (0.1, 0.1), (0.3, 0.2)])
@pytest.mark.parametrize(("drawn_from", "rate"), [(1, None), (10, None), (1, 0.1)])
def test_the_smallest_degree_that_keeps_all_promises_is_chosen(
    devices: int, gamma: float, dropout: float, drawn_from: int, rate: float | None
) -> None:
    population = drawn_from * devices
    threat = Threat(devices, int(gamma * population), int(dropout * devices), population, rate)
    chosen = choose(threat, 30, 15)

    def kept(degree: int, threshold: int) -> bool:
        found = failures(threat, degree, threshold)
        return found.revealed + found.split <= 2.0**-30 and found.stuck <= 2.0**-15

    if chosen.degree < devices - 1:
        assert kept(chosen.degree, chosen.threshold)
        assert not kept(chosen.degree, chosen.threshold + 1)
        smaller = chosen.degree - 2
    else:
        assert chosen.threshold == devices // 2 + 1
        smaller = (devices - 2) // 2 * 2
    # A threshold of 1 would make every share the secret.
    assert not any(kept(smaller, t) for t in range(2, smaller + 1))


def test_a_round_that_is_drawn_from_more_devices_needs_more_neighbours() -> None:
    degrees = [
        choose(Threat(1000, population // 10, 300, population), 40, 20).degree
        for population in (1000, 2000, 100_000)
    ]

    assert degrees == sorted(set(degrees))


def test_degrees_grow_as_the_logarithm_of_the_devices() -> None:
    degrees = [choose(Threat(n, n // 10, 3 * n // 10, n), 40, 20).degree for n in (1000, 10_000)]

    assert degrees[0] < degrees[1] < 1.4 * degrees[0]


def test_the_complete_graph_fails_in_nothing_below_the_threshold() -> None:
    threat = Threat(100, 33, 30, 100)
    found = failures(threat, 99, 51)

    assert (found.revealed, found.split, found.stuck) == (0, 0, 0)
    assert failures(threat, 99, 33).revealed == pytest.approx(1)
    assert failures(threat, 99, 71).stuck == pytest.approx(1)
    assert best_threshold(threat, 99) == 51


def test_even_the_complete_graph_fails_if_a_round_draws_too_many_colluders() -> None:
    found = failures(Threat(100, 333, 30, 1000), 99, 51)

    assert math.log2(found.revealed) == pytest.approx(exactly(1, 1000, 333, 100, 51), abs=1e-6)


def test_the_best_threshold_of_a_degree_lies_between_the_colluding_and_the_surviving() -> None:
    threat = Threat(1000, 100, 300, 1000)
    best = best_threshold(threat, 40)
    total = [f.revealed + f.stuck for f in (failures(threat, 40, t) for t in range(1, 41))]

    assert 4 < best < 28
    assert total[best - 1] == min(total)


@pytest.mark.parametrize("degree", [0, 5, 100, 101])
def test_impossible_degrees_are_refused(degree: int) -> None:
    with pytest.raises(UsageError, match=f"100 devices cannot have {degree} neighbours each"):
        failures(Threat(100, 10, 10, 100), degree, 2)


def test_a_revealed_secret_and_split_honest_devices_are_bounded_together() -> None:
    """With 200 devices, 66 colluding and 40 gone, each would do with 88 neighbours: not both."""
    threat = Threat(200, 66, 40, 200)
    chosen = choose(threat, 40, 20)
    less = failures(threat, 88, 55)

    assert max(less.revealed, less.split) <= 2.0**-40 < less.revealed + less.split
    assert chosen.degree == 90
    assert chosen.revealed + chosen.split <= 2.0**-40
