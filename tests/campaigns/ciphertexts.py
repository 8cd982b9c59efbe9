"""The polynomials of ciphertexts of CKKS, as coefficients, which are uniform only with their mask.

What is sent are values of polynomials, modulo primes. Those of small coefficients look as uniform
as those of any: an error would do for a mask. So they are turned back, modulo the first prime.
"""

from functools import cache

import numpy as np

from hpcfl.crypto import ckks

DEGREE = ckks.DEGREE
# The largest of 60 bits modulo which there are the roots of unity that the degree takes.
PRIME = 2**60 - 2**14 + 1


def product(one, other):
    """Return products modulo the prime; words of 64 bits wrap around in both terms alike."""
    quotient = (one.astype(np.longdouble) * other.astype(np.longdouble) / PRIME).astype(np.uint64)
    found = (one * other - quotient * np.uint64(PRIME)).view(np.int64)
    found += (found < 0) * np.int64(PRIME)
    found -= (found >= PRIME) * np.int64(PRIME)
    return found.view(np.uint64)


def total(one, other):
    """Return sums modulo the prime."""
    return (one + other) % np.uint64(PRIME)


@cache
def roots():
    """Return powers of the inverse of a root of -1, in the order in which stages take them.

    With another root than the library's the coefficients come in another order, and some with the
    other sign.
    """
    root = next(
        root
        for root in (pow(base, (PRIME - 1) // (2 * DEGREE), PRIME) for base in range(2, 100))
        if pow(root, DEGREE, PRIME) == PRIME - 1
    )
    bits, inverse = DEGREE.bit_length() - 1, pow(root, -1, PRIME)
    powers = [pow(inverse, k, PRIME) for k in range(DEGREE)]
    return np.array([powers[int(f"{k:0{bits}b}"[::-1], 2)] for k in range(DEGREE)], np.uint64)


def coefficients(values):
    """Return the coefficients of polynomials whose values these are, shape (n, DEGREE)."""
    found, parts = values, DEGREE // 2
    while parts:
        pairs = found.reshape(len(values), parts, 2, -1)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        differences = product(total(low, np.uint64(PRIME) - high), roots()[parts : 2 * parts, None])
        found = np.stack([total(low, high), differences], axis=2)
        parts //= 2
    return product(found.reshape(values.shape), np.array(pow(DEGREE, -1, PRIME), np.uint64))


def numbers(held, start):
    """Return `DEGREE` of the words that an object of SEAL's holds."""
    return np.array([held[start + place] for place in range(DEGREE)], np.uint64)


def masked(context, ciphertext):
    """Return the values of the polynomial that a vector is in, together with its mask."""
    return numbers(ciphertext, 0)


def opened(context, ciphertext):
    """Return the same without the mask, which is the other polynomial times the key."""
    key = numbers(context._context.secret_key().data.data(), 0)
    mask = product(numbers(ciphertext, 2 * DEGREE), key)
    return total(numbers(ciphertext, 0), mask)


def words(context, uploads, length):
    """Return the low halves of the first coefficients of uploads that are one ciphertext each.

    Of residues modulo a prime of 60 bits the low 32 have 1 + 2^-28 times the likelihood of uniform
    ones at most, all that are looked at together 1.001 times.
    """
    held = [context._read(one.tobytes(), ckks.SLOTS)[0].ciphertext()[0] for one in uploads]
    found = coefficients(np.stack([masked(context, one) for one in held]))
    return found[:, :length].astype(np.uint32)
