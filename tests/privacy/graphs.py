"""What the privacy tests compare with: every case of a small population, one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

Edge = tuple[int, int]


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


@dataclass
class Sums:
    """Adds up weighted cases; the properties are named as the fields of an exposure."""

    weight: float = 0.0
    survivors: float = 0.0
    values: Counter[int] = field(default_factory=Counter)
    one_contributor: float = 0.0
    several_sums: float = 0.0
    squares: float = 0.0

    def add(self, weight, survivors, found):
        self.weight += weight
        self.survivors += weight * survivors
        for component in found:
            self.values[len(component)] += weight * len(component)
        self.one_contributor += weight * (sum(map(len, found)) == 1)
        self.several_sums += weight * (len(found) > 1)

    def expected(self):
        sent = sum(self.values.values())
        return {
            "contributors": sent,
            "sole": self.one_contributor,
            "sole_of_dim": self.one_contributor / self.survivors,
            "split": self.several_sums,
            "sent": sent / self.survivors,
            "alone_of_sent": self.values[1] / sent,
            "alone_of_dim": self.values[1] / self.survivors,
            "alone_at_coordinate": self.values[1],
            "mean_set": sum(size * share for size, share in self.values.items()) / sent,
        }

    def sizes(self):
        sent = sum(self.values.values())
        return {size: share / sent for size, share in self.values.items()}
