"""Rings, segments and cohorts again, as lists and sets that are written out and searched.

Nothing here calls the protocols' code or knows a formula of theirs but the ones of the wire format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from math import isqrt

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def ring_order(public: Mapping[int, bytes], label: str) -> list[int]:
    """Return the ids around the ring: sorted by 128 bits of a keystream that all keys decide."""
    members = sorted(public)
    digest = hashlib.sha256(f"hpcfl/1 {label} links".encode())
    for id in members:
        digest.update(id.to_bytes(4, "little"))
        digest.update(public[id])
    cipher = Cipher(algorithms.AES128(digest.digest()[:16]), modes.CTR(bytes(16))).encryptor()
    ranks = {}
    for id in members:
        block = cipher.update(bytes(16))
        ranks[id] = int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")
    return sorted(members, key=lambda id: ranks[id])


def holders(order: list[int], id: int, degree: int) -> list[int]:
    """Return who holds a device's shares, by slot."""
    ring, place = len(order), order.index(id)
    if ring <= degree + 1:
        first, count = place - ring // 2, ring
    else:
        first, count = place - degree // 2, degree + 1
    return [order[(first + slot) % ring] for slot in range(count)]


def cohort_size(devices: int, alpha: float, ring: int) -> int:
    """Return alpha N, rounded half up, in proportion to the devices that are on the ring."""
    whole = int(Fraction(str(alpha)) * devices + Fraction(1, 2))
    return round(Fraction(whole * ring, devices))


@cache
def segments(dim: int, ring: int) -> list[list[int]]:
    """Return the coordinates of every segment, as they are dealt out.

    In steps of about the golden section of d, from 0 on; segment s ends before place (s + 1) d / n.
    """
    golden = isqrt(5 * dim**2 * 10**20) - dim * 10**10
    nearest = (golden + 10**10) // (2 * 10**10)
    steps = (step for k in range(dim) for step in (nearest - k, nearest + k))
    step = next(step for step in steps if step > 0 and {*range(dim)} == _multiples(step, dim))
    found: list[list[int]] = [[] for _ in range(ring)]
    for place in range(dim):
        segment = max(s for s in range(ring) if s * dim // ring <= place)
        found[segment].append(place * step % dim)
    return found


def _multiples(step: int, dim: int) -> set[int]:
    return {place * step % dim for place in range(dim)}


@cache
def segment_of(dim: int, ring: int) -> dict[int, int]:
    """Return the segment of every coordinate."""
    return {at: s for s, one in enumerate(segments(dim, ring)) for at in one}


def run(dim: int, ring: int, size: int, position: int) -> list[int]:
    """Return the coordinates that the device at a position sends, in their order."""
    ahead = [(position + k) % ring for k in range(size)]
    return [at for s in ahead for at in segments(dim, ring)[s]]


def leads(dim: int, ring: int, coordinate: int, position: int, other: int) -> bool:
    """Return whether, of two runs that hold a coordinate, the one at `position` began earlier."""
    segment = segment_of(dim, ring)[coordinate]
    return (segment - position) % ring > (segment - other) % ring
