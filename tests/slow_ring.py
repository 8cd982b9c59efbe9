"""Reference code for rings, segments and cohorts, with explicit lists and sets.

Nothing here calls the protocols' code. Only the formulas of the wire format are shared.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import cache
from math import isqrt

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def ring_order(devices, public, nonce, label):
    """Return all N ids around the ring: sorted by 128 bits of a keystream each.

    The keystream depends on the nonce and on all advertised keys.
    """
    digest = hashlib.sha256(f"hpcfl/1 {label} links".encode() + nonce)
    for id in sorted(public):
        digest.update(id.to_bytes(4, "little"))
        digest.update(public[id])
    cipher = Cipher(
        algorithms.AES128(digest.digest()[:16]), modes.CTR(bytes(15) + b"\2")
    ).encryptor()
    ranks = []
    for id in range(devices):
        block = cipher.update(bytes(16))
        high, low = int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")
        ranks.append((high, low, id))
    return [id for _, _, id in sorted(ranks)]


def slots(order, id, degree):
    """Return the ids in a device's slots, present or not."""
    ring, place = len(order), order.index(id)
    if degree >= ring - 1:
        return [order[(place - ring // 2 + slot) % ring] for slot in range(ring)]
    return [order[(place - degree // 2 + slot) % ring] for slot in range(degree + 1)]


def holders(order, id, degree, members):
    """Return the holders of a device's shares, by slot: the ids that advertised keys."""
    there = {*members}
    return [one for one in slots(order, id, degree) if one in there]


def cohort_size(devices, alpha):
    """Return alpha N, rounded half up."""
    return int(Fraction(str(alpha)) * devices + Fraction(1, 2))


@cache
def segments(dim, ring):
    """Return the coordinates of every segment, in the order of assignment.

    Its steps are about the golden section of d, from 0; segment s ends before place (s + 1) d / n.
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


def _multiples(step, dim):
    return {place * step % dim for place in range(dim)}


@cache
def segment_of(dim, ring):
    """Return the segment of every coordinate."""
    return {at: s for s, one in enumerate(segments(dim, ring)) for at in one}


def run(dim, ring, size, position):
    """Return the coordinates that the device at a position sends, in their order."""
    ahead = [(position + k) % ring for k in range(size)]
    return [at for s in ahead for at in segments(dim, ring)[s]]


def leads(dim, ring, coordinate, position, other):
    """Return whether the run at `position` began earlier than another run with the coordinate."""
    segment = segment_of(dim, ring)[coordinate]
    return (segment - position) % ring > (segment - other) % ring
