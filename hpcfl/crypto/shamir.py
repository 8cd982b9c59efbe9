"""Shamir's secret sharing over F_q, q = 2**32 - 5, of byte strings cut into 31-bit limbs.

All limbs, secrets and recipients are evaluated in one matrix product. The recipient with number i
holds the value at the point i + 1.
"""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import FQ, Elements, Field
from hpcfl.crypto.matrices import difference_products, inverse, product

LIMB_BITS = 31
# Up to this many terms a sum of products of a 32-bit and a 16-bit number fits 64 bits.
MAX_TERMS = 2**16 - 1

Matrix = NDArray[np.uint64]


def limb_count(secret_bytes: int) -> int:
    """Return the number of 31-bit limbs that hold a secret of `secret_bytes` bytes."""
    return -(-8 * secret_bytes // LIMB_BITS)


def to_limbs(secret: bytes) -> Elements:
    """Return `secret` as 31-bit limbs, least significant first."""
    number = int.from_bytes(secret, "little")
    count = limb_count(len(secret))
    mask = (1 << LIMB_BITS) - 1
    return np.array([number >> LIMB_BITS * k & mask for k in range(count)], np.uint32)


def from_limbs(limbs: Elements, secret_bytes: int) -> bytes:
    """Return the byte string that :func:`to_limbs` cut up.

    ValueError if the limbs are not those of a secret of `secret_bytes` bytes: the shares they were
    combined from do not belong together.
    """
    number = 0
    for limb in reversed(limbs.tolist()):
        if limb >> LIMB_BITS:
            raise ValueError("the shares do not combine to a secret")
        number = number << LIMB_BITS | limb
    try:
        return number.to_bytes(secret_bytes, "little")
    except OverflowError:
        raise ValueError("the shares do not combine to a secret") from None


def split(limbs: Elements, coefficients: Elements, recipients: tuple[int, ...]) -> Elements:
    """Return the shares of R recipients, by number, shape (R, L), of a secret of L limbs.

    `coefficients`, shape (t - 1, L), are uniform elements of F_q; t shares reconstruct the secret,
    fewer say nothing about it.
    """
    polynomials = np.vstack([limbs[None, :], coefficients])
    return product(_powers(recipients, len(polynomials)), polynomials)


def combine(shares: Elements, holders: tuple[int, ...]) -> Elements:
    """Return the secrets' limbs, shape (L,), from the shares of at least t holders, by number.

    Shares have shape (t, L), a row a holder; the columns may belong to any number of secrets.
    """
    return product(_weights_at_zero(holders)[None, :], shares)[0]


def combine_each(shares: Elements, holders: NDArray[np.int64]) -> Elements:
    """Return many secrets' limbs, shape (S, L), each from the shares of holders of its own.

    `shares`, uint32 of shape (S, t, L), has one row a holder for each secret, `holders`, int64 of
    shape (S, t), their numbers in the order of the rows; different within a secret.
    """
    weights = _weights_at_zero_each(holders)[:, None, :]
    return _products(weights, shares)[:, 0].astype(np.uint32)


def consistent(
    shares: Elements,
    holders: NDArray[np.int64],
    received: NDArray[np.bool_],
    threshold: int,
    field: Field = FQ,
) -> NDArray[np.bool_]:
    """Return whether each secret's shares lie on polynomials of degree below the threshold.

    A codeword of a Reed-Solomon code is orthogonal to its dual: the shares at the points x_i, times
    p(x_i) / prod_{j != i} (x_i - x_j), add up to zero for every polynomial p of degree at most m -
    t - 1, m being the number of shares. As many random p are tried as the field takes (SCRAPE,
    Cascudo and David, ACNS 2017, section 2.1): one misses a wrong share with a probability of 1 / q
    for each. They come from the operating system, so that no holder can choose a
    share that passes. Exactly t shares are consistent, whatever they are: no check is possible.

    Shares of S secrets have shape (S, m, L), a row for each of m holders, by number; any elements
    where `received`, shape (S, m), says that there is none.
    """
    secrets, count, limbs = shares.shape
    if not shares.size or int(received.sum(axis=1).max()) <= threshold:
        return np.ones(secrets, np.bool_)
    patterns, which = np.unique(received, axis=0, return_inverse=True)
    weights = _parity_weights(holders, patterns, threshold, field)
    if len(patterns) == 1:
        # The same holders for all secrets, as ever when nobody's share is missing: one product.
        columns = shares.transpose(1, 0, 2).reshape(count, -1)
        sums = product(weights[0], columns, field).reshape(field.checks, secrets, limbs)
        return np.logical_not(sums.any(axis=(0, 2)))
    return np.logical_not(_products(weights[which.reshape(-1)], shares, field).any(axis=(1, 2)))


def _parity_weights(
    holders: NDArray[np.int64], received: NDArray[np.bool_], threshold: int, field: Field
) -> Matrix:
    """Return random weights with which consistent shares of P patterns add up to zero.

    They have shape (P, checks, m), and are zero for shares that were not received.
    """
    q = np.uint64(field.modulus)
    points = holders.astype(np.uint64) + np.uint64(1)
    denominators = difference_products(points, field, received)
    spare = received.sum(axis=1) - threshold
    shape = (int(spare.max()), field.checks, len(received), 1)
    random = (
        field.elements([os.urandom(16)], [int(np.prod(shape))]).astype(np.uint64).reshape(shape)
    )
    values = np.zeros((field.checks, *received.shape), np.uint64)
    for k in range(shape[0] - 1, -1, -1):
        # Patterns with fewer shares have polynomials of a lower degree.
        coefficients = np.where((k < spare)[:, None], random[k], np.uint64(0))
        values = (values * points + coefficients) % q
    return (values * (inverse(denominators, field) * received) % q).transpose(1, 0, 2)


def _products(left: Matrix, right: Elements, field: Field = FQ) -> Matrix:
    """Return ``left @ right``, of elements of a field, for all pairs of a stack."""
    if left.shape[-1] > MAX_TERMS:
        raise ValueError(f"secret sharing supports thresholds up to {MAX_TERMS}")
    q = np.uint64(field.modulus)
    words = right.astype(np.uint64)
    low, high = words & np.uint64(0xFFFF), words >> np.uint64(16)
    return (left @ low + ((left @ high % q) << np.uint64(16))) % q


@lru_cache(maxsize=8)
def _powers(recipients: tuple[int, ...], terms: int) -> Matrix:
    """Return the powers 0 to ``terms - 1`` of every recipient's point, shape (R, terms)."""
    points = np.array(recipients, np.uint64) + np.uint64(1)
    powers = np.ones((len(points), terms), np.uint64)
    for k in range(1, terms):
        powers[:, k] = powers[:, k - 1] * points % np.uint64(FQ.modulus)
    return powers


@lru_cache(maxsize=8)
def _weights_at_zero(holders: tuple[int, ...]) -> Matrix:
    """Return Lagrange's weights for the value at zero, computed once for each set of holders."""
    if len(set(holders)) != len(holders):
        raise ValueError("two shares have the same holder")
    return _weights_at_zero_each(np.array([holders], np.int64))[0]


def _weights_at_zero_each(holders: NDArray[np.int64]) -> Matrix:
    """Return Lagrange's weights for the value at zero for each row of holders, shape (S, t)."""
    q = np.uint64(FQ.modulus)
    points = holders.astype(np.uint64) + np.uint64(1)
    count = points.shape[1]
    # The k-th is prod over j != k of x_j / (x_j - x_k): that is prod over all j of x_j, over x_k
    # times the product of differences x_k - x_j, each with the other sign.
    all_points = np.full((len(points), 1), 1 if count % 2 else FQ.modulus - 1, np.uint64)
    for k in range(count):
        all_points = all_points * points[:, k : k + 1] % q
    return all_points * inverse(points * difference_products(points) % q) % q
