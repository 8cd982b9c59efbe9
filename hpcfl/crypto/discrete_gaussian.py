"""Exact samples of the discrete Gaussian, by integer arithmetic alone.

The discrete Gaussian N_Z(0, sigma**2) takes the integer x with a probability proportional to
exp(-x**2 / (2 sigma**2)). The sampler is that of Canonne, Kamath and Steinke (2020, "The discrete
Gaussian for differential privacy", Algorithms 1 to 3) for integer sigma, vectorised: each step
works on all undecided candidates at once. No decision depends on a floating-point number, so
privacy proofs need not account for rounding.
"""

from __future__ import annotations

import operator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcfl.crypto import keystream
from hpcfl.crypto.noise import uniform_words

LARGEST_SIGMA = 2**27
"""With it, no product of the sampler is above 2**63."""

# Candidates at a time: their data stays in the cache.
_CANDIDATES = 1 << 14

Bools = NDArray[np.bool_]
Signed = NDArray[np.int64]
Words = NDArray[np.uint64]


def discrete_gaussian(seed: bytes, size: int, sigma: int) -> Signed:
    """Return independent samples of N_Z(0, sigma**2), for a sigma from 1 to `LARGEST_SIGMA`.

    The seed is 16 secret bytes that are used for nothing else. It determines the samples.
    """
    sigma = operator.index(sigma)  # a float would later be truncated, which would reduce the noise
    if not 1 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma is {sigma}; it must be 1 to {LARGEST_SIGMA}")
    source = _Source(seed)
    samples = np.empty(size, np.int64)
    done = 0
    while done < size:
        # About 0.4 of the candidates are accepted.
        accepted = _candidates(source, min(_CANDIDATES, 3 * (size - done) + 16), sigma)
        some = accepted[: size - done]
        samples[done : done + some.size] = some
        done += some.size
    return samples


class _Source:
    """Uniform integers from a keystream, one after the other."""

    def __init__(self, seed: bytes) -> None:
        self.words = partial(uniform_words, keystream.open_stream(seed))

    def below(self, bound: int, count: int) -> Words:
        """Return uniform integers from 0 to ``bound - 1``, for a bound of at most 2**63."""
        words = self.words(count)
        # The largest multiple of the bound: words below it are uniform modulo the bound.
        largest = 2**64 - 2**64 % bound
        if largest < 2**64:
            wrong = np.flatnonzero(words >= np.uint64(largest))
            while wrong.size:
                words[wrong] = self.words(wrong.size)
                wrong = wrong[words[wrong] >= np.uint64(largest)]
        return words % np.uint64(bound)


def _candidates(source: _Source, count: int, sigma: int) -> Signed:
    """Return the accepted ones of `count` candidates, in order (Algorithm 3, t = sigma)."""
    low, turns, negative = _discrete_laplace(source, count, sigma)
    # Accept with probability exp(-(|y| - sigma)**2 / (2 sigma**2)), |y| = low + sigma turns. The
    # exponent's whole part and remainder are computed without squaring |y|.
    twice = 2 * sigma * sigma
    beyond = turns - 1  # |y| - sigma = low + sigma beyond
    whole = beyond * beyond // 2 + beyond * low // sigma
    rest = (beyond & 1) * (sigma * sigma) + (beyond * low % sigma) * (2 * sigma) + low * low
    whole += rest // twice
    rest %= twice
    accepted = _successes(source, count) >= whole
    accepted[accepted] = _exp_minus(source, rest[accepted].astype(np.uint64), twice)
    values = low + sigma * turns
    return np.where(negative, -values, values)[accepted]


def _discrete_laplace(source: _Source, count: int, scale: int) -> tuple[Signed, Signed, Bools]:
    """Return `count` samples z of probability proportional to exp(-|z| / scale) (Algorithm 2).

    They come as low and turns, with |z| = low + scale turns and low < scale, and the sign of z.
    """
    low = np.empty(count, np.int64)
    turns = np.empty(count, np.int64)
    negative = np.empty(count, np.bool_)
    open_ones = np.arange(count)
    while open_ones.size:
        drawn = source.below(scale, open_ones.size)
        kept = _exp_minus(source, drawn, scale)
        low[open_ones] = drawn
        turns[open_ones] = _successes(source, open_ones.size)
        negative[open_ones] = source.below(2, open_ones.size) == 1
        # Reject minus zero: zero would otherwise be twice as likely.
        zero = (low[open_ones] == 0) & (turns[open_ones] == 0)
        open_ones = open_ones[~kept | (zero & negative[open_ones])]
    return low, turns, negative


def _successes(source: _Source, count: int) -> Signed:
    """Return the number of successes before the first failure, of events of probability exp(-1)."""
    numbers = np.zeros(count, np.int64)
    open_ones = np.arange(count)
    while open_ones.size:
        happened = _exp_minus(source, np.ones(open_ones.size, np.uint64), 1)
        open_ones = open_ones[happened]
        numbers[open_ones] += 1
    return numbers


def _exp_minus(source: _Source, numerators: Words, denominator: int) -> Bools:
    """Return whether events of probability exp(-numerator / denominator) happen (Algorithm 1).

    Numerator <= denominator <= 2**56. With x their quotient, events of probability x / k are drawn
    for k = 1, 2, ...; the first event that fails has an odd k with probability exp(-x).
    """
    happens = np.empty(numerators.size, np.bool_)
    open_ones = np.arange(numerators.size)
    k = 1
    while open_ones.size:
        goes_on = source.below(denominator * k, open_ones.size) < numerators[open_ones]
        happens[open_ones[~goes_on]] = k % 2 == 1
        open_ones = open_ones[goes_on]
        k += 1
    return happens
