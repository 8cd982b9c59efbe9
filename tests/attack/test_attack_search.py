import math
from collections import defaultdict
from itertools import combinations, pairwise

import numpy as np
import pytest

from hpcfl.attack import search as module
from hpcfl.attack.search import search
from hpcfl.crypto.groups import FQ, GROUPS


def entries(group, counts, bound, seed=0):
    """Return uniform entries, so many at each coordinate, of which some are made to cancel."""
    generator = np.random.default_rng(seed)
    coordinates = np.repeat(np.arange(len(counts)) * 3, counts)
    elements = generator.integers(0, group.modulus, coordinates.size)
    starts = np.cumsum([0, *counts])
    for start, stop in pairwise(starts):
        order = start + generator.permutation(stop - start)
        while order.size:
            size = min(int(generator.integers(1, 5)), order.size)
            total = int(generator.integers(-size * bound, size * bound + 1))
            part, order = order[:size], order[size:]
            elements[part[0]] = (total - elements[part[1:]].sum()) % group.modulus
    return coordinates, elements.astype(np.uint32), np.full(coordinates.size, bound)


def by_hand(coordinates, elements, bounds, group, largest):
    """Return what is recognised, with numbers of Python and no arrays."""
    places = defaultdict(list)
    for k, place in enumerate(coordinates.tolist()):
        places[place].append(k)
    found = []
    for size in range(1, largest + 1):
        found.append(set())
        for members in places.values():
            small = []
            for subset in combinations(list(members), size):
                total = sum(int(elements[k]) for k in subset) % group.modulus
                total -= group.modulus if total > group.modulus // 2 else 0
                if abs(total) <= sum(int(bounds[k]) for k in subset):
                    small.append((abs(total), subset))
            for _, subset in sorted(small):
                if set(subset) <= set(members):
                    found[-1].add(subset)
                    for k in subset:
                        members.remove(k)
    return found


def sets(trial):
    return {tuple(sorted(one)) for one in trial.sets.tolist()}


@pytest.mark.parametrize("group", [FQ, GROUPS["ring32"]], ids=lambda group: group.name)
@pytest.mark.parametrize("seed", range(3))
def test_components_are_found_as_by_hand(group, seed, monkeypatch):
    counts = [1, 7, 3, 0, 4, 5, 2, 6, 9] * 5
    # So large that there are chance finds, and overlapping ones, too.
    monkeypatch.setattr(module, "MOST_BY_CHANCE", math.inf)
    planted = entries(group, counts, 1 << 24, seed)
    trials = search(*planted, group, 4)

    assert [sets(trial) for trial in trials] == by_hand(*planted, group, 4)
    assert all(len(trial.sets) > 5 for trial in trials)
    assert any(trial.small > len(trial.sets) for trial in trials)


def test_bounds_are_those_of_each_member():
    coordinates = np.array([0, 0, 1, 1, 2, 3])
    elements = np.array([10**6, FQ.modulus - 10**6 - 30, 10**6, FQ.modulus - 10**6 - 31, 20, 21])
    bounds = np.array([10, 20, 10, 20, 20, 20])
    ones, twos = search(coordinates, elements.astype(np.uint32), bounds, FQ, 2)

    assert sets(ones) == {(4,)}
    assert sets(twos) == {(0, 1)}
    assert (twos.tested, ones.tested) == (2, 6)


def test_chance_finds_are_as_many_as_expected():
    generator = np.random.default_rng(1)
    coordinates = np.repeat(np.arange(3000), 12)
    elements = generator.integers(0, FQ.modulus, coordinates.size).astype(np.uint32)
    # Different bounds, so that each subset has a probability of its own.
    bounds = np.resize([1 << 15, 1 << 17], coordinates.size)
    trials = search(coordinates, elements, bounds, FQ, 3)

    for size, trial in enumerate(trials, 1):
        assert trial.tested == pytest.approx(3000 * math.comb(12, size), rel=0.02)
        # The mean bound of a member is 5 * 2**14.
        probability = (2 * size * 5 * 2**14 + 1) / FQ.modulus
        assert trial.by_chance == pytest.approx(trial.tested * probability, rel=0.02)
        assert abs(trial.small - trial.by_chance) < 4 * math.sqrt(trial.by_chance)
    assert trials[2].by_chance > 50


def test_where_chance_finds_are_likely_nothing_is_tried():
    # 2 (2 bound + 1) / q is just below and just above a tenth.
    limit = int(module.MOST_BY_CHANCE * FQ.modulus / 4)
    elements = np.full(4, 5, np.uint32)
    coordinates = np.array([0, 0, 1, 1])
    bounds = np.array([limit - 2, limit - 2, limit + 2, limit + 2])
    (ones,) = search(coordinates, elements, bounds, FQ, 1)

    assert (sets(ones), ones.tested, ones.skipped) == ({(0,), (1,)}, 2, 1)


def test_too_many_subsets_are_not_tried(monkeypatch):
    monkeypatch.setattr(module, "MOST_SUBSETS", 10)
    elements = np.full(11, 10**9, np.uint32)
    coordinates = np.repeat([0, 1], [5, 6])
    _, twos = search(coordinates, elements, np.full(11, 10), FQ, 2)

    assert (twos.tested, twos.skipped) == (10, 1)


def test_where_nothing_is_tried_no_subsets_are_listed(monkeypatch):
    monkeypatch.setattr(module, "MOST_SUBSETS", 0)
    # There could be millions of them.
    monkeypatch.setattr(module, "combinations", None)
    (ones,) = search(np.zeros(3, np.int64), np.ones(3, np.uint32), np.ones(3, np.int64), FQ, 1)

    assert (ones.tested, ones.skipped, len(ones.sets)) == (0, 1, 0)


def test_of_overlapping_sums_the_smallest_are_taken():
    q = FQ.modulus
    # 0 + 1 is 5, 1 + 2 is 2, 2 + 3 is 9, the others are large. With 1 + 2, none of these is left.
    elements = np.array([10**6, q + 5 - 10**6, 10**6 - 3, q + 12 - 10**6])
    _, twos = search(np.zeros(4, np.int64), elements.astype(np.uint32), np.full(4, 5), FQ, 2)

    assert sets(twos) == {(1, 2)}
    assert twos.small == 3


def test_nothing_is_found_among_nothing():
    none = np.empty(0, np.int64)

    assert [trial.sets.shape for trial in search(none, none.astype(np.uint32), none, FQ, 3)] == [
        (0, 1),
        (0, 2),
        (0, 3),
    ]
