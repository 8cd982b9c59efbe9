"""Statistical tests that tell masked vectors from anything that is not uniform.

A masked upload must look like uniform elements of the group, independent from one upload to the
next, whatever the vector was. Under that hypothesis every p-value here is a bound that holds for
any number of elements, not an approximation for large ones:

- binomial tails are exact, and doubled for two sides; where the smallest of k is taken, it is
  multiplied by k (Bonferroni);
- byte frequencies use the likelihood-ratio form of the chi-square test, n times the relative
  entropy D of the frequencies: P(n D > x) <= exp(-x) (e x / (k - 1))^(k - 1) for x > k - 1 and k
  bins (Agrawal 2020, "Finite-sample concentration of the multinomial in relative entropy",
  Theorem 1.2);
- of all strings of n bytes, fewer than 256^(m + 1) / 255 are compressed to at most m bytes;
- a classifier that has seen no held-out upload is right about them no more often than a fair coin:
  the number is a sum of independent trials with a mean of one half, whose tail is below the
  binomial's (Hoeffding 1956, Theorem 4).

Words of F_q with q = 2^32 - 5 are no uniform 32-bit words, but have (2^32 / q)^n times the
likelihood at most, n of them together; `inspect` multiplies by it (1.001 for a million).
That AES-CTR is not a random function could only show if it were broken.
"""

import math
import zlib

import numpy as np
from scipy.stats import binom

LAGS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
WORD = 2**32


def inspect(first, second, modulus):
    """Return a bound of the p-value of every test of uploads of two inputs.

    Both of shape (n, length), n a multiple of 4; neighbouring rows are what one device sent in
    consecutive rounds. `modulus` is the number of group elements.
    """
    looked_at = {
        "first": first,
        "second": second,
        "pairs of the first": differences(first[0::2], first[1::2], modulus),
        "pairs of the second": differences(second[0::2], second[1::2], modulus),
        "pairs of both": differences(first, second, modulus),
    }
    found = {
        f"{name}, {what}": test(rows) for what, rows in looked_at.items() for name, test in TESTS
    }
    found["regression on bits"] = held_out(flat_bits(first), flat_bits(second))
    words = 2 * first.size * (WORD / modulus - 1)
    return {name: min(1.0, p * math.exp(words)) for name, p in found.items()}


def alarms(found, false_alarm):
    """Return the tests that see something, all of them together wrongly with `false_alarm`."""
    return {name for name, p in found.items() if p <= false_alarm / len(found)}


def differences(one, other, modulus):
    """Return the differences modulo `modulus`; masks that are used twice are gone from them."""
    return ((one.astype(np.int64) - other) % modulus).astype(np.uint32)


def byte_frequency(rows):
    """Count bytes at each of the four places of a word."""
    return 4 * min(likelihood_ratio(place) for place in rows.view(np.uint8).reshape(-1, 4).T)


def value_frequency(rows):
    """Count values in 16 parts of the group: few bins, so that a small slope shows.

    In 16 uploads at a time too: what devices have in different directions would cancel.
    """
    leading = (rows >> np.uint32(28)).astype(np.uint8)
    parts = [leading, *(leading[start : start + 16] for start in range(0, len(rows), 16))]
    return len(parts) * min(likelihood_ratio(part.reshape(-1), 16) for part in parts)


def likelihood_ratio(values, bins=256):
    """Return Agrawal's bound for the frequencies of uniform values below `bins`."""
    counts = np.bincount(values, minlength=bins)
    parts = counts[counts > 0] / values.size
    x = float(values.size * (parts * np.log(parts * bins)).sum())
    free = bins - 1
    if x <= free:
        return 1.0
    return math.exp(-x + free * (1 + math.log(x / free)))


def coordinates(rows):
    """Count every bit of every coordinate, over the uploads."""
    return smallest(bits_of(rows).sum(axis=0, dtype=np.uint16).astype(np.int64), len(rows))


def serial_correlation(rows):
    """Compare every bit with the same bit some coordinates on; the exclusive ors are fair coins."""
    found = []
    for lag in (lag for lag in LAGS if lag < rows.shape[1]):
        changed = rows[:, lag:] ^ rows[:, :-lag]
        found.append(smallest(ones_of(changed), changed.size))
    return len(found) * min(found)


def across_uploads(rows):
    """Compare every bit with the same bit of the same coordinate in the next upload."""
    changed = rows[1:] ^ rows[:-1]
    return smallest(ones_of(changed), changed.size)


def compression(rows):
    """Compress with zlib, upload by upload, coordinate by coordinate, and byte by byte."""
    forms = rows, rows.T, rows.view(np.uint8).reshape(-1, 4).T
    found = []
    for form in forms:
        raw = np.ascontiguousarray(form).tobytes()
        found.append(_saved(raw, len(zlib.compress(raw, 6))))
    return len(found) * min(found)


def _saved(raw, compressed):
    saved = len(raw) - compressed
    return 256.0 ** (1 - min(saved, 100)) / 255 if saved > 0 else 1.0


def bits_of(rows):
    """Return the bits, shape (n, length, 32)."""
    raw = rows.view(np.uint8).reshape(*rows.shape, 4)
    return np.unpackbits(raw, axis=2)


def ones_of(words):
    """Return how many of the words have each of the 32 bits set."""
    places = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 4).T
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int64)
    return np.concatenate([np.bincount(place, minlength=256) @ bits for place in places])


def smallest(ones, coins, part=0.5):
    """Return the smallest two-sided tail of many binomial counts, times their number."""
    low, high = int(ones.min()), int(ones.max())
    tail = min(binom.cdf(low, coins, part), binom.sf(high - 1, coins, part))
    return 2 * ones.size * float(tail)


TESTS = (
    ("byte frequency", byte_frequency),
    ("value frequency", value_frequency),
    ("coordinates", coordinates),
    ("serial correlation", serial_correlation),
    ("across uploads", across_uploads),
    ("compression", compression),
)


def held_out(first, second):
    """Return how likely a coin is right as often as a classifier about the half it did not see."""
    seen = np.arange(len(first)) % 4 < 2  # whole pairs: a pair may share what it should not
    train = np.vstack([first[seen], second[seen]])
    labels = np.repeat([1.0, -1.0], seen.sum())
    centre, spread = train.mean(axis=0), train.std(axis=0)
    scale = np.where(spread > 0, spread, 1) * train.dtype.type(math.sqrt(train.shape[1]))
    decide = logistic((train - centre) / scale, labels)
    test = np.vstack([first[~seen], second[~seen]])
    truth = np.repeat([1.0, -1.0], (~seen).sum())
    right = int(((decide((test - centre) / scale) > 0) == (truth > 0)).sum())
    # Hoeffding's bound holds from one above the mean.
    return 1.0 if right <= truth.size // 2 else float(binom.sf(right - 1, truth.size, 0.5))


def logistic(inputs, labels):
    """Return a logistic regression, fitted by 200 steps of gradient descent.

    Its weights are a combination of the inputs, whose coefficients are all that changes.
    """
    products = inputs @ inputs.T
    combination = np.zeros(len(labels))
    for _ in range(200):
        wrong = labels / (1 + np.exp(labels * (products @ combination)))
        combination += 4 * (wrong / len(labels) - 1e-3 * combination)
    weights = combination @ inputs
    return lambda values: values @ weights


def flat_bits(rows):
    """Return an upload's bits as -1 and 1."""
    return bits_of(rows).reshape(len(rows), -1) * np.float32(2) - np.float32(1)


def inspect_locations(first, second, part):
    """Return a bound of the p-value of every test of where uploads of two inputs have values.

    Both are flags of shape (n, d), of independent rounds. Under the hypothesis every coordinate is
    sent with the probability `part`, independently, and whatever the vector is.
    """
    found = {"regression": held_out(first * 1.0, second * 1.0)}
    for what, sent in (("first", first), ("second", second)):
        # Every second pair of neighbours, so that no coordinate is in two of them.
        both, again = sent[:, 0:-1:2] & sent[:, 1::2], sent[0:-1:2] & sent[1::2]
        found |= {
            f"coordinates, {what}": smallest(sent.sum(axis=0), len(sent), part),
            f"uploads, {what}": smallest(sent.sum(axis=1), sent.shape[1], part),
            f"all, {what}": smallest(sent.sum(keepdims=True), sent.size, part),
            f"neighbours, {what}": smallest(both.sum(keepdims=True), both.size, part**2),
            f"next upload, {what}": smallest(again.sum(keepdims=True), again.size, part**2),
        }
    return found
