"""The group of prime order of the curve edwards25519 (RFC 8032), and sharing of its scalars.

The implementation is libsodium through PyNaCl, an optional extra (``pip install hpcfl[flamingo]``).
A point is its encoding, and a scalar an integer modulo `ORDER`; both are sent as 32 bytes. `ORDER`
is so close to 2**252 that uniform bytes modulo `ORDER` are a scalar that is uniform up to 2**-126.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, reduce
from typing import Any

from hpcfl.crypto.keys import cut
from hpcfl.errors import MissingPackageError

ORDER = 2**252 + 27742317777372353535851937790883648493
BYTES = 32


@cache
def library() -> Any:
    """Return PyNaCl's bindings; raise UsageError if they are not installed."""
    try:
        from nacl import bindings
    except ImportError as error:
        raise MissingPackageError("flamingo", "PyNaCl", "flamingo") from error
    return bindings


def packed(scalar: int) -> bytes:
    """Return a scalar, reduced, as 32 bytes, little-endian."""
    return (scalar % ORDER).to_bytes(BYTES, "little")


def scalars(raw: bytes) -> list[int]:
    """Return the scalars of which `raw` has 32 bytes each."""
    return [int.from_bytes(one, "little") % ORDER for one in cut(raw, BYTES)]


def base(scalar: int) -> bytes:
    """Return the generator times a scalar that is not 0."""
    point: bytes = library().crypto_scalarmult_ed25519_base_noclamp(packed(scalar))
    return point


def multiply(scalar: int, point: bytes) -> bytes:
    """Return a point times a scalar; ValueError for the identity, and for other than such points.

    libsodium makes the checks of `is_point` first, so no point tells anything about the scalar.
    """
    try:
        found: bytes = library().crypto_scalarmult_ed25519_noclamp(packed(scalar), point)
    except RuntimeError:
        raise ValueError("a point is not in the group") from None
    return found


def combine(factors: Iterable[int], points: Iterable[bytes]) -> bytes:
    """Return the sum of points times factors; ValueError as for `multiply`, except for factors 1.

    Whether points with the factor 1 are in the group is not checked.
    """
    terms = map(lambda k, point: point if k == 1 else multiply(k, point), factors, points)
    try:
        return reduce(library().crypto_core_ed25519_add, terms)
    except RuntimeError:
        raise ValueError("a point is not on the curve") from None


def is_point(point: bytes) -> bool:
    """Return whether the bytes are an element of the group other than the identity."""
    return bool(library().crypto_core_ed25519_is_valid_point(point))


def share(coefficients: Sequence[int], count: int) -> list[int]:
    """Return the values at 1 to `count` of a polynomial; its first coefficient is the secret."""
    shares = [0] * count
    for coefficient in reversed(coefficients):
        shares = [(value * x + coefficient) % ORDER for x, value in enumerate(shares, 1)]
    return shares


@lru_cache(maxsize=64)
def weights(numbers: tuple[int, ...]) -> list[int]:
    """Return the factors with which the shares at these places add up to the secret."""
    found = []
    for x in numbers:
        over = under = 1
        for other in numbers:
            if other != x:
                over, under = over * other % ORDER, under * (other - x) % ORDER
        found.append(over * pow(under, -1, ORDER) % ORDER)
    return found
