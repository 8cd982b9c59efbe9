"""What the privacy tests compare with: every case of a small population, one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb


def components(vertices, edges):
    """Return the connected components of a graph by search."""
    neighbours: dict[int, set[int]] = {vertex: set() for vertex in vertices}
    for left, right in edges:
        if left in neighbours and right in neighbours:
            neighbours[left].add(right)
            neighbours[right].add(left)
    found, left_over = [], set(neighbours)
    while left_over:
        todo, component = [left_over.pop()], set()
        while todo:
            vertex = todo.pop()
            component.add(vertex)
            todo += neighbours[vertex] & left_over
            left_over -= neighbours[vertex]
        found.append(component)
    return found


def harary(size, degree):
    """Return the edges between places on a ring and their degree / 2 next ones."""
    steps = range(1, degree // 2 + 1)
    return {(min(a, b), max(a, b)) for a in range(size) for b in ((a + k) % size for k in steps)}


def subsets(things):
    things = list(things)
    for size in range(len(things) + 1):
        yield from combinations(things, size)


def honest_survivors(devices, colluding, dropout, model):
    """Return each set of honest survivors and its probability; the first devices collude."""
    honest = range(colluding, devices)
    dropped = int(dropout * devices + 1e-9)
    found: Counter[frozenset[int]] = Counter()
    for gone in subsets(range(devices)):
        if model == "bernoulli":
            weight = dropout ** len(gone) * (1 - dropout) ** (devices - len(gone))
        elif model == "exact":
            weight = (len(gone) == dropped) / comb(devices, dropped)
        else:
            alike = len(gone) == dropped and all(device >= colluding for device in gone)
            weight = alike / comb(len(honest), dropped)
        if weight:
            found[frozenset(honest) - set(gone)] += weight
    return found


def expected(cases):
    """Return the figures of an exposure from (weight, honest survivors, components)."""
    survivors = sole = several = 0.0
    values: Counter[int] = Counter()
    for weight, count, found in cases:
        survivors += weight * count
        for component in found:
            values[len(component)] += weight * len(component)
        sole += weight * (sum(map(len, found)) == 1)
        several += weight * (len(found) > 1)
    sent = sum(values.values())
    return {
        "contributors": sent,
        "sole": sole,
        "split": several,
        "sent": sent / survivors,
        "alone_of_sent": values[1] / sent,
        "alone_of_dim": values[1] / survivors,
        "mean_set": sum(size * share for size, share in values.items()) / sent,
    }
