"""Recognises values, and sums of a few, among what is left after the known masks are off.

At one coordinate, the masks between honest survivors cancel within each connected component of the
graph of pairs that masked it. The adversary does not know these pairs, but a sum over a component
is small: its members' values are at most a public bound in magnitude. Any other sum is uniform in
the group, and small by chance with the probability (2 bound + 1) / q. So it tries all subsets of a
coordinate's senders by increasing size, and lays aside what it recognises.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import Elements, Group

Numbers = NDArray[np.int64]

# Where as many subsets are expected to be small by chance, or so many would have to be tried, a
# coordinate is left alone.
MOST_BY_CHANCE = 0.1
MOST_SUBSETS = 5000


@dataclass
class Trial:
    """Subsets of one size."""

    # The recognised subsets, shape (m, size), which do not overlap: numbers of their members among
    # all entries.
    sets: Numbers
    small: int = 0  # subsets with a small sum; if not recognised, they overlap a smaller one
    tested: int = 0  # subsets that were tried
    by_chance: float = 0.0  # how many of these are expected to be small if none is a component
    skipped: int = 0  # coordinates that were left alone
    # Numbers of the entries there.
    untried: Numbers = field(default_factory=lambda: np.empty(0, np.int64))


def search(
    coordinates: Numbers, elements: Elements, bounds: Numbers, group: Group, largest: int
) -> list[Trial]:
    """Return what is recognised among the values of some coordinates, by size from 1 to `largest`.

    Of each entry there are its coordinate, not decreasing, what is left of it, and the largest
    magnitude of the value that may be in it; they are summed in the group.
    """
    free = np.ones(coordinates.size, np.bool_)
    trials = []
    for size in range(1, largest + 1):
        trial = Trial(np.empty((0, size), np.int64))
        found: list[tuple[Numbers, Numbers]] = []
        untried = [trial.untried]
        for members in _by_count(coordinates, np.flatnonzero(free), size):
            subsets = math.comb(len(members), size)
            by_chance = _by_chance(bounds[members], size, group)
            tried = (by_chance <= MOST_BY_CHANCE) & (subsets <= MOST_SUBSETS)
            trial.tested += subsets * int(np.count_nonzero(tried))
            trial.by_chance += float(by_chance[tried].sum())
            trial.skipped += int(np.count_nonzero(~tried))
            untried.append(members[:, ~tried].ravel())
            if tried.any():
                found.extend(_small(members[:, tried], size, elements, bounds, group))
        if found:
            sets, magnitudes = (np.concatenate(parts) for parts in zip(*found, strict=True))
            trial.small = len(sets)
            trial.sets = _disjoint(sets, magnitudes, coordinates)
        trial.untried = np.concatenate(untried)
        free[trial.sets] = False
        trials.append(trial)
    return trials


def _by_count(coordinates: Numbers, entries: Numbers, least: int) -> Iterator[Numbers]:
    """Yield the entries of all coordinates with k of them, shape (k, .), for each k from `least`.

    `entries` are numbers of entries, increasing.
    """
    starts = np.flatnonzero(np.diff(coordinates[entries], prepend=-1))
    counts = np.diff(starts, append=entries.size)
    for count in np.unique(counts[counts >= least]).tolist():
        yield entries[starts[counts == count] + np.arange(count)[:, np.newaxis]]


def _by_chance(bounds: Numbers, size: int, group: Group) -> NDArray[np.float64]:
    """Return how many subsets of the k entries of a coordinate are small if all are uniform.

    A subset is with the probability (2 bound + 1) / q, its bound being the sum of its members',
    each of which is in C(k - 1, size - 1) subsets. `bounds` has the shape (k, coordinates).
    """
    count = len(bounds)
    each = math.comb(count - 1, size - 1)
    return (2 * each * bounds.sum(axis=0) + math.comb(count, size)) / group.modulus


def _small(
    members: Numbers, size: int, elements: Elements, bounds: Numbers, group: Group
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield subsets of the columns of `members` with a small sum, and the sums' magnitudes."""
    values, reach = elements[members].astype(np.int64), bounds[members]
    for subset in combinations(range(len(members)), size):
        total, bound = values[subset[0]], reach[subset[0]]
        for member in subset[1:]:
            total, bound = total + values[member], bound + reach[member]
        # From -bound to bound; raised, from 0.
        raised = group.reduce(total + bound)
        small = np.flatnonzero(raised <= 2 * bound)
        if small.size:
            yield members[list(subset)][:, small].T, np.abs(raised[small] - bound[small])


def _disjoint(members: Numbers, magnitudes: Numbers, coordinates: Numbers) -> Numbers:
    """Return subsets that do not overlap: at each coordinate always the smallest sum that may."""
    chosen = []
    taken = np.zeros(coordinates.size, np.bool_)
    order = np.lexsort((magnitudes, coordinates[members[:, 0]]))
    left = members[order]
    while left.size:
        _, first = np.unique(coordinates[left[:, 0]], return_index=True)
        chosen.append(left[first])
        taken[left[first]] = True
        left = left[~taken[left].any(axis=1)]
    return np.concatenate(chosen)
