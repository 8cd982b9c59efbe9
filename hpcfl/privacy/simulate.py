"""The masking graph of a coordinate, drawn again and again, and its components.

Nothing here uses a formula of :mod:`hpcfl.privacy.formulas`: the two are compared with each other.
Every sample is one coordinate of a round of its own, with its own dropouts, order of devices and
selecting pairs. Colluding devices are the first ones; protocols treat all devices alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.privacy.distributions import Counts, Floats
from hpcfl.privacy.population import Population
from hpcfl.system import machine

Flags = NDArray[np.bool_]

# Devices of all samples that are simulated at once: what fits into the processor's caches.
_AT_ONCE = 1 << 19
# What is kept of a sample, at least: four numbers, in parts and put together.
SAMPLE_BYTES = 64


@dataclass(frozen=True)
class Observations:
    """What happened in a number of samples."""

    survivors: Counts  # honest survivors of the round of each sample
    # In that sample there were so many components of that size; each combination occurs once.
    sample: Counts
    size: Counts
    components: Counts

    def per_sample(self, values: Counts | Floats) -> Floats:
        """Return the sum of `values`, one for each row of (sample, size, components)."""
        sums = np.zeros(self.survivors.size)
        np.add.at(sums, self.sample, values)
        return sums


@dataclass(frozen=True)
class Drawn:
    """Devices and masks of a number of samples; vertex i * N + j is device j of sample i."""

    sends: Flags  # shape (samples, N): who sends the coordinate if it survives
    # The two vertices of every edge. One between devices that are not both honest survivors is
    # ignored.
    left: Counts
    right: Counts


# Draws the masks at one coordinate, given the honest survivors of every sample.
Draw = Callable[[Flags, np.random.Generator], Drawn]


def simulate(
    population: Population,
    draw: Draw,
    samples: int,
    seed: int,
    progress: Callable[[int], object] = lambda done: None,
) -> Observations:
    """Return what happened in a number of coordinates, each of a round of its own.

    `draw` draws a protocol's masks: one of the functions below, with its parameters bound.
    `progress` is told after each few samples how many they were. More samples than memory has room
    for are a UsageError.
    """
    machine.check_memory(f"{samples} samples", SAMPLE_BYTES * samples, "give fewer --simulated")
    generator = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // population.devices)
    parts = []
    for first in range(0, samples, step):
        honest = _honest_survivors(population, min(step, samples - first), generator)
        parts.append(_observe(honest, draw(honest, generator), first))
        progress(len(honest))
    survivors, sample, size, components = map(np.concatenate, zip(*parts, strict=True))
    return Observations(survivors, sample, size, components)


def ring(cohort: int, degree: int, honest: Flags, generator: np.random.Generator) -> Drawn:
    """Draw a cohort that sends and masks along a Harary graph, in random order.

    Only honest survivors that follow each other are linked. A survivor's neighbours on one side are
    the next k / 2 places; whoever is there is linked through those in between, so the components
    are those of the whole graph. The cohort's m devices are drawn anew for each sample; with a
    degree of m - 1 or more all are neighbours.
    """
    samples, devices = honest.shape
    order = _orders(honest.shape, generator)[:, :cohort]
    sends = np.zeros_like(honest)
    np.put_along_axis(sends, order, True, axis=1)

    row, place = np.nonzero(np.take_along_axis(honest, order, axis=1))
    vertex = row * devices + order[row, place]
    count = np.bincount(row, minlength=samples)
    following = np.arange(1, row.size + 1)
    ends = np.cumsum(count)
    following[ends[count > 0] - 1] = (ends - count)[count > 0]  # the last is followed by the first
    distance = (place[following] - place) % cohort
    linked = distance <= (cohort if degree >= cohort - 1 else degree // 2)
    return Drawn(sends, vertex[linked], vertex[following[linked]])


def selecting_pairs(
    alpha: float, degree: int, honest: Flags, generator: np.random.Generator
) -> Drawn:
    """Draw SparseSecAgg: each pair of neighbours selects a coordinate with probability alpha / k.

    The degree k is N - 1 or an even number.
    """
    samples, devices = honest.shape
    complete = degree == devices - 1
    pairs = devices * degree // 2
    sample, pair = np.divmod(_successes(samples * pairs, alpha / degree, generator), pairs)
    if complete:
        # Device j has pairs with the j devices before it, numbered from j (j - 1) / 2.
        starts = np.arange(devices) * np.arange(-1, devices - 1) // 2
        right = np.searchsorted(starts, pair, side="right") - 1
        left = pair - starts[right]
    else:
        place, distance = np.divmod(pair, degree // 2)
        order = _orders(honest.shape, generator)
        left = order[sample, place]
        right = order[sample, (place + distance + 1) % devices]
    sends = np.zeros_like(honest)
    sends[sample, left] = True
    sends[sample, right] = True
    return Drawn(sends, sample * devices + left, sample * devices + right)


def connected_components(vertices: int, left: Counts, right: Counts) -> Counts:
    """Return for each vertex the smallest vertex of its component.

    Components that share an edge are merged, all at once, and paths to the smallest vertex are
    halved until all are of length 1 (Shiloach and Vishkin 1982), until no edge is left between two.
    """
    root = np.arange(vertices)
    while left.size:
        left, right = root[left], root[right]
        apart = left != right
        left, right = left[apart], right[apart]
        np.minimum.at(root, np.maximum(left, right), np.minimum(left, right))
        while True:
            above = root[root]
            if np.array_equal(above, root):
                break
            root = above
    return root


def _honest_survivors(
    population: Population, samples: int, generator: np.random.Generator
) -> Flags:
    """Draw who drops out; return the honest devices that stay, shape (samples, N)."""
    devices, colluding = population.devices, population.colluding
    stays = np.ones((samples, devices), np.bool_)
    if population.model == "bernoulli":
        stays = generator.random((samples, devices)) >= population.dropout
    elif population.model == "exact":
        gone = _orders((samples, devices), generator)[:, : population.dropped]
        np.put_along_axis(stays, gone, False, axis=1)
    else:
        gone = colluding + _orders((samples, devices - colluding), generator)
        np.put_along_axis(stays, gone[:, : population.dropped], False, axis=1)
    stays[:, :colluding] = False
    return stays


def _orders(shape: tuple[int, ...], generator: np.random.Generator) -> Counts:
    """Draw a random order of the columns for each row."""
    return generator.permuted(np.broadcast_to(np.arange(shape[1]), shape), axis=1)


def _successes(trials: int, probability: float, generator: np.random.Generator) -> Counts:
    """Draw independent trials; return the numbers of those that succeed, increasing.

    From one success to the next the distance is geometric.
    """
    found: list[Counts] = []
    last = -1
    while last < trials:
        expected = (trials - last) * probability
        gaps = generator.geometric(probability, int(expected + 5 * expected**0.5) + 8)
        found.append(last + np.cumsum(np.minimum(gaps, trials + 1)))  # longer ones overflow
        last = int(found[-1][-1])
    numbers = np.concatenate(found)
    return numbers[numbers < trials]


def _observe(honest: Flags, drawn: Drawn, first: int) -> tuple[Counts, Counts, Counts, Counts]:
    """Return the fields of :class:`Observations`; samples are numbered from `first`."""
    devices = honest.shape[1]
    flat = honest.reshape(-1)
    between = flat[drawn.left] & flat[drawn.right]
    root = connected_components(flat.size, drawn.left[between], drawn.right[between])
    members = np.bincount(root[(honest & drawn.sends).reshape(-1)], minlength=flat.size)
    components = np.flatnonzero(members)
    sample_and_size, count = np.unique(
        components // devices * (devices + 1) + members[components], return_counts=True
    )
    sample, size = np.divmod(sample_and_size, devices + 1)
    return honest.sum(axis=1), first + sample, size, count
