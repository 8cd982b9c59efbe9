"""Ring-LWE masks: a worked example, exact products, errors that rounding removes."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.crypto import keystream, ringlwe
from hpcfl.crypto.ringlwe import LARGEST, RING_DIM, SIGMA, Packing, mask, masks, multiplier, small

WIDTHS = range(8, 33, 4)
LOW_52 = np.uint64(2**52 - 1)


@pytest.fixture(params=["compiled", "numpy"])
def arithmetic(request, monkeypatch):
    """Lets `multiplier` use compiled code, or NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(ringlwe, "_compiled", lambda: None)
    elif ringlwe._compiled() is None:
        pytest.skip("kernel.c was not compiled")


def counting(key):
    """Return the AES-128-CTR stream of a key, with the counter from 0."""
    return keystream.counting(key, bytes(16))


def convolved(a, k):
    """Return a k modulo x^n + 1 and 2^64, coefficient by coefficient."""
    # Rows of the matrix are windows, backwards, of -a followed by a.
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([-a, a]), RING_DIM)
    return windows[1:, ::-1] @ k.astype(np.int64).view(np.uint64)


def polynomials(count):
    """Return words of public polynomials, end to end."""
    return ringlwe._words(counting(bytes(16)), count * RING_DIM)


def digits_of(words):
    """Return polynomials, shape (count, n), as digits ``low + 1j * high``, both centred."""
    low, high = (words >> np.uint64(place) & np.uint64(2**26 - 1) for place in (0, 26))
    return (low - 2.0**25 + 1j * (high - 2.0**25)).reshape(-1, RING_DIM)


def exact(words, key):
    """Return whether the products of polynomials and a key are those of integers."""
    right = [convolved(a, key) for a in (words - np.uint64(ringlwe._ZERO)).reshape(-1, RING_DIM)]
    found = multiplier(key)(words.copy())
    return not ((found ^ np.concatenate(right)) & LOW_52).any()


def test_masked_vectors_of_three_devices_are_those_of_the_worked_example(arithmetic):
    """Computed beforehand by a prototype with its own transforms, words and packing."""
    packing, seed = Packing(values=2, bits=20, error_bits=12), bytes(range(16))
    assert (52, 2) == (packing.word_bits, packing.polynomials(5000))
    words = ringlwe._words(counting(seed), 2) & LOW_52
    assert [3254035653829062, 2472395281616751] == words.tolist()
    assert ringlwe._ZERO == 2251799847239680

    total, keys, errors = np.zeros(4096, np.uint64), np.zeros(RING_DIM, np.int64), 0
    heads = ([5, 4, -3, 4, -2, -4], [1, -2, 7, 5, 2, 5], [-2, 3, -1, -6, 0, -7])
    firsts = (858354643909629, 2469119528181582, 2247243198325608)
    digests = ("0413625cd227e639", "dde1500039cd5429", "1e2904af86d6f728")
    rows = zip(heads, (260, -112, -3), firsts, digests, strict=True)
    for i, (head, of_key, first, digest) in enumerate(rows):
        values = np.arange(5000) * (i + 1) % 1001 - 500
        secret = counting(bytes([i + 1] * 16))
        key = small(secret, RING_DIM)
        assert (head, of_key) == (key[:6].tolist(), key.sum())
        out = np.empty(26_624, np.uint8)
        mask(packing, values, counting(seed), secret, key, out)
        assert digest == hashlib.sha256(out).hexdigest()[:16]
        assert first == int(out[:8].view("<u8")[0] & LOW_52)
        packing.add(out, total)
        keys += key
        again = counting(bytes([i + 1] * 16))
        errors += small(again, RING_DIM + 4096)[RING_DIM:]
    assert [3, 14, -1, 1, 0, 9] == errors[:6].tolist()
    assert 30 == np.abs(errors).max()
    for part, words in masks(counting(seed), keys, 2):
        total[part] -= words
    sums = packing.collect(total, 5000)
    assert [-1500, -1494, -1488, -1482, -1476, -1470] == sums[:6].tolist()
    assert -7425 == sums.sum()


@pytest.mark.parametrize("devices", [1, 1000, 12_000])
def test_products_are_those_of_integers(devices, arithmetic):
    """Also with sums of the keys of many devices, which are cut into digits."""
    generator = np.random.default_rng(devices)
    assert exact(polynomials(2), generator.binomial(84 * devices, 0.5, RING_DIM) - 42 * devices)


def distance(digits, key):
    """Return how far NumPy's products of polynomials and a digit of keys are from integers."""
    spectra = np.fft.fft(digits * ringlwe._TWIST)
    found = np.fft.ifft(spectra * np.fft.fft(key * ringlwe._TWIST)) * ringlwe._TWIST.conj()
    parts = found.view(np.float64)
    return np.abs(parts - np.rint(parts)).max()


def bound(digits, key):
    """Return a bound of that distance, by norms and the error of a transform, u = 2^-53.

    In the l2 norm, the relative error of a transform of length 2^t is at most 9 t u if its weights
    are right to 3.3 u (Higham, Accuracy and Stability of Numerical Algorithms, 2002, theorem 24.2).
    Those of the kernel are; NumPy's are right to u, so the bound includes the factors `_TWIST`. By
    Parseval's identity, the two transforms of factors contribute |a| |k| times that, and the last
    one |a k| <= |a| max |k^| times that. Products of complex numbers add 4 u each.

    The kernel does only nine of the eleven steps. Instead of numbers, it multiplies polynomials a
    of four terms by k, k x, k x^2 and k x^3. The transforms of these contribute at most
    (|a_0| + ... + |a_3|) |k| <= 2 |a| |k|, and the products, sums of eight real terms, at most
    6 sqrt(2) u for each complex term, in all 17 u |a| max |k^|.
    """
    error, a = 2.0**-53 * (9 * math.log2(RING_DIM) + 8), np.linalg.norm(digits, axis=-1).max()
    k, largest = np.linalg.norm(key), np.abs(np.fft.fft(key * ringlwe._TWIST)).max()
    return error * a * (3 * k + largest)


def test_the_error_of_products_is_far_below_a_half():
    digits = digits_of(polynomials(41))
    key = small(counting(b"k" * 16), RING_DIM)
    assert distance(digits, key) <= 2**-14
    assert distance(digits, key) <= bound(digits, key) <= 2**-5
    # A digit of the sum of any number of keys.
    digit = np.random.default_rng(1).integers(-128, 128, RING_DIM)
    assert distance(digits, digit) <= bound(digits, digit) < 2**-1


def test_it_is_so_for_digits_that_nobody_draws(arithmetic):
    signs = np.random.default_rng(3).choice([0, 1], (3, 2, RING_DIM)).astype(np.uint64)
    words = (signs * np.array([[2**26 - 1], [2**52 - 2**26]], np.uint64)).sum(axis=1).reshape(-1)
    key = np.where(signs[0, 0], -128, 127)[::-1]
    aligned = np.cos(np.pi / RING_DIM * np.arange(RING_DIM) * 3)  # all in one frequency
    for one in (key, np.where(aligned > 0, 127, -128), np.full(RING_DIM, -128)):
        assert distance(digits_of(words), one) <= 2**-9
        assert exact(words, one)


def test_keys_and_errors_are_binomial():
    """Chi-squared; a right sampler fails once in a million times, and the key is fixed."""
    found = small(counting(b"x" * 16), 200_000)
    law = stats.binom(84, 0.5)
    inner = np.arange(-14, 15)
    counts = [(found < -14).sum(), *((found == k).sum() for k in inner), (found > 14).sum()]
    tail = law.sf(42 + 14)
    expected = np.array([tail, *law.pmf(inner + LARGEST), tail]) * found.size
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    assert math.isclose(law.std(), SIGMA)


@given(
    bits=st.sampled_from(WIDTHS),
    devices=st.integers(2, 20_000),
    dim=st.integers(1, 9000),
    seed=st.integers(0, 2**32),
)
def test_sums_come_back_from_words_under_any_error_below_half_a_step(bits, devices, dim, seed):
    packing, generator = Packing.of(bits, devices), np.random.default_rng(seed)
    assert packing.values >= 1
    assert packing.word_bits <= 52
    # Nine deviations of the sum of all errors.
    assert 2 ** (packing.error_bits - 1) >= 9 * SIGMA * math.sqrt(devices)
    largest, half = 2 ** (bits - 1) - 1, 2 ** (packing.error_bits - 1)
    sums = generator.integers(-largest, largest + 1, dim)
    sums[generator.random(dim) < 0.2] = generator.choice([-largest, largest])
    # Whatever the summands are.
    one = generator.integers(-(2**40), 2**40, dim)
    words = packing.spread(one) + packing.spread(sums - one)
    errors = generator.choice([-half, half - 1, 0], words.size)
    out = np.empty(packing.wire_bytes(words.size), np.uint8)
    packing.pack(words + errors.view(np.uint64), out)
    total = np.zeros(words.size, np.uint64)
    packing.add(out, total)
    assert (packing.collect(total, dim) == sums).all()
