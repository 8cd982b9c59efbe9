"""Degree and threshold of a ring: bounds against all rings there are, and the smallest that do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from hpcfl.algorithms.aggregation.promises import Outcome
from hpcfl.algorithms.aggregation.topology import Linked, Unopened
from hpcfl.errors import UsageError
from hpcfl.privacy.ring import best_threshold, choose, failures
from hpcfl.privacy.threat import Threat

# A ring: how likely it is, who colludes and who has dropped out, by position.
Flags = tuple[bool, ...]
Rings = Iterator[tuple[Fraction, Flags, Flags]]


def rings(devices, colluding, dropped, population):
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


def coin_rings(devices, rate):
    """Yield every ring of devices that all drop out by chance; none colludes."""
    for gone in product([False, True], repeat=devices):
        yield (
            rate ** sum(gone) * (1 - rate) ** (devices - sum(gone)),
            (False,) * devices,
            gone,
        )


def around(flags, place, degree):
    """Return how many of a place's neighbours have a flag."""
    size, half = len(flags), degree // 2
    if degree == size - 1:
        return sum(flags) - flags[place]
    return sum(flags[(place + k) % size] for k in range(-half, half + 1) if k)


def runs(absent, half, expelled=0):
    """Return how many stretches of `half` places in a row are absent, or can be made so.

    Whoever knows the ring makes `expelled` devices absent besides.
    """
    size = len(absent)
    there = (sum(not absent[(start + k) % size] for k in range(half)) for start in range(size))
    return sum(left <= expelled for left in there)


def without(absent, expelled):
    """Return who is absent once some are expelled."""
    return tuple(away or place in expelled for place, away in enumerate(absent))


def parts(absent, half):
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


def expected(all_rings, failing):
    """Return the expected numbers of failures of several kinds."""
    totals: dict[Fraction, list[int]] = {}
    for likely, bad, gone in all_rings:
        found = failing(bad, gone)
        total = totals.setdefault(likely, [0] * len(found))
        totals[likely] = [sum(pair) for pair in zip(total, found, strict=True)]
    weighted = [[likely * count for count in counts] for likely, counts in totals.items()]
    return [float(sum(column)) for column in zip(*weighted, strict=True)]


def away(bad, gone):
    """Return who collude or have dropped out."""
    return tuple(map(any, zip(bad, gone, strict=True)))


EXPELLED = range(4)
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
def test_bounds_are_the_expected_numbers_of_failures_over_all_rings(who, degree):
    """So each is at least the probability of any, and not above what the union bound costs.

    Bounds count devices that may be honest, and that may drop out, as if they were and did. Of a
    device's neighbours t + 2 must survive: of t + 1, one that answers falsely is as consistent
    with t - 1 others as the one that is then left out.
    """
    devices, colluding, dropped, population = who
    complete = degree == devices - 1
    thresholds = range(1, degree + 2)

    def failing(bad, gone):
        left = tuple(not one for one in gone)
        colluders = [around(bad, place, degree) for place in range(devices) if not bad[place]]
        alive = [around(left, place, degree) for place in range(devices) if gone[place]]
        opened = [sum(count >= t for count in colluders) for t in thresholds]
        # With all others as neighbours, all honest devices have the same ones: one event for all.
        if complete:
            opened = [int(count > 0) for count in opened]
        stuck = [sum(count < t + 2 for count in alive) for t in thresholds]
        cut = [runs(away(bad, gone), degree // 2, expelled) for expelled in EXPELLED]
        return [*cut, *opened, *stuck]

    split, rest = np.split(expected(rings(*who), failing), [len(EXPELLED)])
    honest = 1.0 if complete else devices if population > devices else devices - colluding
    counted = 1.0 if complete else honest / (devices * (1 - colluding / population))
    for threshold in thresholds:
        found = failures(Threat(*who), degree, threshold)
        revealed, stuck = rest[threshold - 1], rest[degree + threshold]

        assert found.revealed == pytest.approx(min(1.0, counted * revealed), rel=1e-12, abs=1e-15)
        for expelled, cut in zip(EXPELLED, split, strict=True):
            known = failures(Threat(*who), degree, threshold, expelled)
            assert known.split == pytest.approx(
                0.0 if complete else min(1.0, cut), rel=1e-12, abs=1e-15
            )
            assert (known.revealed, known.stuck) == (found.revealed, found.stuck)
        # One, where nothing else is said.
        assert found == failures(Threat(*who), degree, threshold, 1)
        if dropped and population == devices:
            times = (1 if complete else devices) / dropped
            assert found.stuck == pytest.approx(min(1.0, times * stuck), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    ("who", "degree"), [((10, 3, 3, 10), 4), ((9, 2, 1, 9), 4), ((11, 3, 2, 11), 6)]
)
@pytest.mark.parametrize("expelled", [0, 1])
def test_the_honest_are_only_split_where_half_a_degree_in_a_row_is_gone(who, degree, expelled):
    """Whomever somebody who knows the ring has expelled: the worst choice counts."""
    half = degree // 2
    bound = failures(Threat(*who), degree, 2, expelled).split

    def failing(bad, gone):
        absent = away(bad, gone)
        choices = [without(absent, chosen) for chosen in combinations(range(who[0]), expelled)]
        apart = [left for left in choices if parts(left, half) > 1]
        unseen = [left for left in apart if runs(left, half) < 2]
        # A stretch that one choice or other makes all absent is one that lacks no more than that.
        cut = max(runs(left, half) for left in choices) > 0
        assert cut == (runs(absent, half, expelled) > 0)
        return [bool(apart), cut, bool(unseen)]

    apart, cut, unseen = expected(rings(*who), failing)
    assert apart <= cut <= bound
    # There are rings that come apart as soon as as many are gone as two stretches have places.
    assert (apart > 0) == (sum(who[1:3]) + expelled >= 2 * half)
    assert unseen == 0


@pytest.mark.parametrize("degree", [2, 4, 6])
def test_where_devices_drop_out_by_chance_rings_fail_as_often_as_chance_says(degree):
    devices, rate, most = 8, Fraction(3, 10), 5
    thresholds = range(1, degree + 2)

    def failing(bad, gone):
        # One neighbour vanishes whatever happens.
        lacking = {place: without(gone, ((place + 1) % devices,)) for place in range(devices)}
        alive = [
            around(tuple(not away for away in lacking[place]), place, degree)
            for place in range(devices)
            if gone[place]
        ]
        split = sum(gone) <= most and runs(gone, degree // 2, 1) > 0
        return [split, *(sum(count < t + 2 for count in alive) for t in thresholds)]

    split, *stuck = expected(coin_rings(devices, rate), failing)
    for threshold in thresholds:
        found = failures(Threat(devices, 0, most, devices, rate=0.3), degree, threshold)
        each = stuck[threshold - 1] / float(rate)
        assert found.stuck == pytest.approx(min(1.0, each), rel=1e-12)
        # More than that seldom drop out, and a round in which they do is another matter.
        assert 0 < split <= found.split


def chance(total, marked, drawn, hits):
    """Return how likely it is that so many of the drawn are marked."""
    ways = sum(comb(marked, k) * comb(total - marked, drawn - k) for k in hits if k <= drawn)
    return Fraction(ways, comb(total, drawn))


def bits(probability):
    return math.log2(probability)


def exactly(honest, total, marked, drawn, least):
    """Return a union bound over so many devices that `least` of the drawn are marked, in bits."""
    return bits(honest * chance(total, marked, drawn, range(least, drawn + 1)))


def cut(threat, degree, expelled=1):
    """Return the expected number of stretches of the ring that are gone, or nearly so."""
    devices, half, found = threat.devices, degree // 2, Fraction(0)
    for bad in range(devices + 1):
        likely = chance(threat.population, threat.colluding, devices, [bad])
        gone = min(devices, bad + threat.dropped)
        if likely:
            found += likely * chance(devices, gone, half, range(max(0, half - expelled), half + 1))
    return devices * found


def test_bounds_are_exact_at_any_size():
    threat = Threat(1000, 333, 300, 1000)
    found = failures(threat, 150, 80)

    assert math.log2(found.revealed) == pytest.approx(exactly(667, 999, 333, 150, 80), abs=1e-6)
    assert math.log2(found.stuck) == pytest.approx(
        bits(1000 * chance(999, 700, 150, range(80 + 2))), abs=1e-6
    )
    for expelled in range(4):
        split = failures(threat, 150, 80, expelled).split
        assert math.log2(split) == pytest.approx(bits(cut(threat, 150, expelled)), abs=1e-6)


@pytest.mark.parametrize("devices", [50, 100, 300, 1000, 10_000])
@pytest.mark.parametrize(("gamma", "dropout"), [(0.05, 0.3), (0.1, 0.1), (0.3, 0.2)])
@pytest.mark.parametrize(("drawn_from", "rate"), [(1, None), (10, None), (1, 0.1)])
def test_the_smallest_degree_that_keeps_all_promises_is_chosen(
    devices, gamma, dropout, drawn_from, rate
):
    population = drawn_from * devices
    threat = Threat(devices, int(gamma * population), int(dropout * devices), population, rate)
    chosen = choose(threat, 30, 15)

    def kept(degree, threshold):
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


@pytest.mark.parametrize("least", [2, 39, 40, 60, 61, 70, 97, 98, 99, 500])
def test_a_degree_that_is_needed_for_other_reasons_is_the_smallest(least):
    """A round of these 100 is safe with 60 neighbours; with more, if they are asked for."""
    threat = Threat(100, 10, 30, 100)
    chosen = choose(threat, 40, 20, least)
    without = choose(threat, 40, 20)

    if least <= 60:
        assert chosen == without == choose(threat, 40, 20, 2)
    elif least <= 98:
        assert chosen.degree == least + least % 2
        # The largest threshold with which no device is left with fewer than two more, but seldom.
        stuck = [
            100 * chance(99, 70, chosen.degree, range(t + 2)) <= Fraction(1, 2**20)
            for t in range(2, chosen.degree)
        ]
        assert chosen.threshold == 2 + stuck.index(False) - 1
    else:
        assert (chosen.degree, chosen.threshold) == (99, 51)


def test_the_complete_graph_fails_in_nothing_below_the_threshold():
    threat = Threat(100, 33, 30, 100)
    found = failures(threat, 99, 51)

    assert (found.revealed, found.split, found.stuck) == (0, 0, 0)
    assert failures(threat, 99, 33).revealed == pytest.approx(1)
    # 70 of 99 others survive, one that answers falsely and one more among them.
    assert [0, 1] == [failures(threat, 99, t).stuck for t in (68, 69)]
    assert failures(threat, 99, 51, 40).split == 0
    assert best_threshold(threat, 99) == 51


@pytest.mark.parametrize("degree", [10, 40, 100])
@pytest.mark.parametrize("who", [(1000, 100, 300, 1000), (200, 90, 80, 200), (120, 300, 20, 1000)])
def test_the_best_threshold_is_that_of_all_counted_exactly(who, degree):
    """With two more survivors than the threshold, of a device that dropped out itself."""
    devices, colluding, dropped, population = who
    honest = devices - colluding if population == devices else devices
    near = [chance(population - 1, colluding, degree, [c]) for c in range(degree + 1)]
    left = [chance(devices - 1, devices - dropped, degree, [c]) for c in range(degree + 1)]
    total = {
        t: honest * sum(near[t:], Fraction(0)) + devices * sum(left[: t + 2], Fraction(0))
        for t in range(2, degree + 1)
    }

    assert best_threshold(Threat(*who), degree) == min(total, key=lambda t: (total[t], t))


@pytest.mark.parametrize("degree", [0, 5, 100, 101])
def test_impossible_degrees_are_refused(degree):
    with pytest.raises(UsageError, match=f"100 devices cannot have {degree} neighbours each"):
        failures(Threat(100, 10, 10, 100), degree, 2)


@pytest.mark.parametrize("expelled", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("dropped", [0, 5, 12, 13, 16, 20])
def test_a_round_is_judged_by_who_has_dropped_out_and_by_who_was_expelled_besides(
    dropped, expelled
):
    """Planned with twelve that drop out and one that is expelled; refused where that is exceeded.

    Whoever is expelled has not dropped out as well: others know the ring when that happens.
    """
    planned, degree, threshold = Threat(60, 6, 12, 60), 20, 10
    promise = Linked(planned, degree, threshold, 2.0**-60)
    outcome = Outcome(60, 60 - dropped - expelled, expelled=expelled)
    revealed = 54 * chance(59, 6, degree, range(threshold, degree + 1))
    found = revealed + cut(planned.with_dropped(dropped), degree, expelled)
    limit = revealed + cut(planned, degree, 1)
    refusal = promise.broken(outcome)

    assert promise.failure(outcome) == pytest.approx(float(min(found, 1)), rel=1e-9)
    assert promise.worst == pytest.approx(float(limit), rel=1e-9)
    # What an account is charged beforehand is enough for every round that is accepted.
    assert refusal is not None or promise.failure(outcome) <= promise.worst
    assert (refusal is not None) == (min(found, 1) > limit)
    if refusal is not None:
        assert (f", {expelled} of them expelled:" in refusal) == (expelled > 0)
        assert f"{dropped + expelled} of 60 devices have dropped out" in refusal
    # One more of either is not what was planned; in place of the one expelled, four may drop out.
    assert limit < 1
    assert (dropped, expelled) not in {(12, 2), (13, 1), (20, 0)} or refusal is not None
    assert (dropped, expelled) not in {(12, 1), (16, 0)} or refusal is None


@pytest.mark.parametrize(
    ("devices", "dropped", "said"),
    [
        (2, 1, "can end the round: 4 answers are needed"),
        (10, 4, "costs itself alone if 8 devices answer, and can end the round where dropouts"),
        (14, 5, "costs itself alone if 10 devices answer, and can end the round where dropouts"),
        (15, 5, "costs itself alone while at least 10 devices answer"),
        (18, 5, r"k of them while at least 10 \+ 2 k devices answer: up to 2 beside"),
    ],
)
def test_all_linked_with_all_say_how_many_must_answer_to_tell_who_is_false(devices, dropped, said):
    promise = Unopened(Threat(devices, 0, dropped, devices), devices - 1, devices // 2 + 1)
    assert re.search(said, promise.claim)
