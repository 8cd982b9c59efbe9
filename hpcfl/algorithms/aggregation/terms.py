"""What the work of each party in a round grows with: the terms of the learned cost model.

A protocol says in its method ``terms`` how much of each term a party has in a round: peers, values,
masked values, and the like. What one of each costs is not declared but learned from small real
rounds (:mod:`hpcfl.costmodel.learning`), for each protocol and party by itself, so that a term need
only be proportional to the work that it stands for. Each party also has a cost once in a round.

Values that do not fit the cache cost more: `far` counts them once more.
"""

from __future__ import annotations

from hpcfl.crypto.groups import Group, Ring

Terms = dict[str, float]
# Coordinates, eight bytes each, that fit the cache.
CACHED = 1 << 17


def beyond_cache(length: float) -> float:
    """Return the part of a vector's elements that does not fit the cache."""
    return max(0.0, 1 - CACHED / length) if length else 0.0


def far(name: str, count: float, length: float | None = None) -> Terms:
    """Return work on some values of a vector of that length (`count` by default), cached or not."""
    beyond = count * beyond_cache(count if length is None else length)
    return {name: count, f"{name}, not cached": beyond}


def masked(group: Group, count: float, name: str = "masked values") -> Terms:
    """Return so many elements of keystream added to a vector: bytes of them in a ring."""
    if isinstance(group, Ring):
        return {f"{name}, bytes": count * group.dtype.itemsize}
    return {name: count}


def summed(group: Group, vectors: float, length: float) -> Terms:
    """Return so many uploads of that many values unpacked and added up."""
    ring = isinstance(group, Ring)
    size = group.dtype.itemsize if ring else 1
    name = "received values, bytes" if ring else "received values"
    return far(name, vectors * length * size, length) | packed(group, vectors * length)


def packed(group: Group, count: float) -> Terms:
    """Return so many elements packed for the wire, or unpacked."""
    return {} if group.whole_words else {"packed bytes": count * group.bits / 8}


def coded(group: Group, rows: int, inner: int, columns: int) -> Terms:
    """Return a product of matrices over a field: elements of at most 16 bits take a quarter."""
    name = "products of short elements" if group.bits <= 16 else "products"
    return {name: float(rows * inner * columns)}
