"""Shamir's secret sharing over F_q, q = 2**32 - 5, of byte strings cut into 31-bit limbs.

One matrix product evaluates all limbs, secrets and recipients. Recipient number i holds the value
at the point i + 1.
"""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto.groups import FQ, Elements, Field
from hpcfl.crypto.matrices import Floats, difference_products, inverse, product

LIMB_BITS = 31
# The sum of this many products of a 32-bit and a 16-bit number fits into 64 bits.
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

    Raise ValueError if the limbs do not encode a secret of `secret_bytes` bytes: they were then
    combined from shares that do not belong together.
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
    """Return the shares of a secret of L limbs for R recipients, given by number; shape (R, L).

    `coefficients`, shape (t - 1, L), are uniform elements of F_q. Any t shares reconstruct the
    secret, fewer reveal nothing about it.
    """
    polynomials = np.vstack([limbs[None, :], coefficients])
    return product(_powers(recipients, len(polynomials)), polynomials)


def combine(shares: Elements, holders: tuple[int, ...]) -> Elements:
    """Return the secrets' limbs, shape (L,), from the shares of at least t holders, by number.

    `shares`, shape (t, L), has one row per holder; the columns may belong to several secrets.
    """
    return product(_weights_at_zero(holders)[None, :], shares)[0]


def combine_each(shares: Elements, holders: NDArray[np.int64]) -> Elements:
    """Return many secrets' limbs, shape (S, L), where each secret has its own holders.

    `shares`, uint32 of shape (S, t, L), has one row per holder of each secret. `holders`, int64 of
    shape (S, t), has the holders' numbers in the same order, all different within a secret.
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

    A Reed-Solomon codeword is orthogonal to its dual code: m shares at the points x_i, each times
    p(x_i) / prod_{j != i} (x_i - x_j), add up to zero for every polynomial p of degree at most
    m - t - 1 (SCRAPE, Cascudo and David, ACNS 2017, section 2.1). The check tries `field.checks`
    random p, each of which misses a wrong share with probability 1 / q. The operating system
    supplies the randomness, so no holder can choose a share that passes. Exactly t shares are
    always consistent: no check is possible.

    `shares`, shape (S, m, L) for S secrets, has a row for each of m holders, by number. Rows hold
    arbitrary elements where `received`, shape (S, m), is false.
    """
    secrets, count, limbs = shares.shape
    if not shares.size or int(received.sum(axis=1).max()) <= threshold:
        return np.ones(secrets, np.bool_)
    patterns, which = np.unique(received, axis=0, return_inverse=True)
    weights = _parity_weights(holders, patterns, threshold, field)
    if len(patterns) == 1:
        # All secrets have the same holders, as usual without missing shares: one product will do.
        columns = shares.transpose(1, 0, 2).reshape(count, -1)
        sums = product(weights[0], columns, field).reshape(field.checks, secrets, limbs)
        return np.logical_not(sums.any(axis=(0, 2)))
    return np.logical_not(_products(weights[which.reshape(-1)], shares, field).any(axis=(1, 2)))


def _parity_weights(
    holders: NDArray[np.int64], received: NDArray[np.bool_], threshold: int, field: Field
) -> Matrix:
    """Return random weights, shape (P, checks, m), that make consistent shares add up to zero.

    Each of the P patterns says which shares were received; the other shares have weight zero.
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
    """Return ``left @ right`` over a field, for each pair in a stack of matrices."""
    if left.shape[-1] > MAX_TERMS:
        raise ValueError(f"secret sharing supports thresholds up to {MAX_TERMS}")
    q = np.uint64(field.modulus)
    words = right.astype(np.uint64)
    low, high = words & np.uint64(0xFFFF), words >> np.uint64(16)
    return (left @ low + ((left @ high % q) << np.uint64(16))) % q


@lru_cache(maxsize=8)
def _powers(recipients: tuple[int, ...], terms: int) -> Floats:
    """Return the powers 0 to ``terms - 1`` of every recipient's point, shape (R, terms).

    They are kept as BLAS takes them: to convert them takes as long as to multiply by them.
    """
    points = np.array(recipients, np.uint64) + np.uint64(1)
    powers = np.ones((len(points), terms), np.uint64)
    for k in range(1, terms):
        powers[:, k] = powers[:, k - 1] * points % np.uint64(FQ.modulus)
    return powers.astype(np.float64)


@lru_cache(maxsize=8)
def _weights_at_zero(holders: tuple[int, ...]) -> Matrix:
    """Return the Lagrange weights for the value at zero, cached for each tuple of holders."""
    if len(set(holders)) != len(holders):
        raise ValueError("two shares have the same holder")
    return _weights_at_zero_each(np.array([holders], np.int64))[0]


def _weights_at_zero_each(holders: NDArray[np.int64]) -> Matrix:
    """Return the Lagrange weights for the value at zero for each row of holders, shape (S, t)."""
    q = np.uint64(FQ.modulus)
    points = holders.astype(np.uint64) + np.uint64(1)
    count = points.shape[1]
    # The k-th weight is prod over j != k of x_j / (x_j - x_k): the product of all x_j, divided by
    # x_k prod (x_k - x_j), times the sign (-1)**(t - 1).
    all_points = np.full((len(points), 1), 1 if count % 2 else FQ.modulus - 1, np.uint64)
    for k in range(count):
        all_points = all_points * points[:, k : k + 1] % q
    return all_points * inverse(points * difference_products(points) % q) % q
