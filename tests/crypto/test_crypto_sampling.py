"""Both samplers draw i.i.d. Bernoulli patterns, and permutations are uniform; from integers."""

import hashlib
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from crypto_reference import (
    LEVEL,
    assert_fits,
    exact_thresholds,
    fixed_keys,
    gap_of,
    group_elements,
    histogram,
    select_by_gaps,
    stream_bytes,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.crypto import keystream
from hpcfl.crypto.groups import FQ
from hpcfl.crypto.sampling import SAMPLERS, DenseSampler, GapSampler, permutation

HALF, TENTH, HUNDREDTH = Fraction(1, 2), Fraction(1, 10), Fraction(1, 100)
PAIR = Fraction(0.1) / 99
"""What 100 devices select with, for alpha = 0.1."""


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes a sampler, ``"reach 4"`` one that looks 4 coordinates far."""

    def make_sampler(name, probability):
        if name.startswith("reach"):
            monkeypatch.setattr(GapSampler, "REACH", int(name.removeprefix("reach ")))
            return GapSampler(probability)
        return SAMPLERS[name](probability)

    return make_sampler


def lists(sampler, keys, dim):
    """Return the coordinates that each key selects."""
    positions, counts = sampler.select(keys, dim)
    assert counts.shape == (len(keys),)
    assert counts.sum() == positions.size
    ends = np.cumsum(counts)
    return [part.tolist() for part in np.split(positions, ends[:-1])]


def patterns(sampler, keys, dim):
    """Return what each key selects as a matrix of keys by coordinates."""
    positions, counts = sampler.select(keys, dim)
    selected = np.zeros((len(keys), dim), np.bool_)
    selected[np.repeat(np.arange(len(keys)), counts), positions] = True
    assert counts.tolist() == selected.sum(axis=1).tolist()
    return selected


def gaps(sampler, probability, count):
    """Return the first `count` gaps of one key, in a vector long enough not to cut any."""
    mean = float(1 / probability)
    dim = int(mean * (count + 10 * count**0.5))
    positions, _ = sampler.select(fixed_keys(1, seed=7), dim)
    return np.diff(positions, prepend=-1)[:count]


def geometric_bins(probability, bins):
    """Return upper ends of bins of nearly equal probability, and these probabilities."""
    law = stats.geom(float(probability))
    uppers = np.unique(law.ppf(np.arange(1, bins) / bins)).astype(np.int64)
    return uppers, np.diff(law.cdf(uppers), prepend=0, append=1)


# The definition


@pytest.mark.parametrize(
    ("name", "probability"),
    [
        ("gaps", HALF),
        ("gaps", HUNDREDTH),
        ("reach 1", TENTH),
        ("reach 4", TENTH),
        ("reach 4", Fraction(3, 4)),
        ("reach 50", HUNDREDTH),
        ("reach 1000", PAIR),
    ],
)
def test_gaps_are_selected_as_the_definition_says(name, probability, make):
    sampler, keys = make(name, probability), fixed_keys(6)
    thresholds = exact_thresholds(probability, GapSampler.REACH)
    for dim in (1, 2, 7, 100, 4001):
        expected = [select_by_gaps(key, dim, thresholds) for key in keys]
        assert expected == lists(sampler, keys, dim)


@pytest.mark.parametrize("probability", [HALF, TENTH, PAIR])
def test_dense_selection_compares_elements_as_the_definition_says(probability):
    keys, dim = fixed_keys(4), 3000
    threshold = FQ.modulus * probability.numerator // probability.denominator
    expected = [
        [
            at
            for at, element in enumerate(group_elements(key, dim, FQ.modulus))
            if element < threshold
        ]
        for key in keys
    ]
    assert expected == lists(DenseSampler(probability), keys, dim)


def test_dense_selection_takes_the_elements_below_the_threshold(monkeypatch):
    threshold = FQ.modulus // 10
    elements = np.array([threshold - 1, threshold, threshold + 1, 0, FQ.modulus - 1], np.uint32)
    monkeypatch.setattr(FQ, "elements", lambda keys, counts: elements)
    expected = [[0, 3]]
    assert expected == lists(DenseSampler(TENTH), fixed_keys(1), elements.size)


@pytest.mark.parametrize("probability", [HALF, HUNDREDTH, Fraction(1, 1000), PAIR, Fraction(1e-5)])
def test_thresholds_are_exact_to_one_unit(probability):
    thresholds, reach = GapSampler(probability)._thresholds.tolist(), GapSampler.REACH
    assert reach == len(thresholds)
    stay = 1 - probability
    for gap in (1, 2, 3, 10, 100, 1000, reach):
        exact = (stay.numerator**gap << 64) // stay.denominator**gap
        assert abs(exact - thresholds[-gap]) <= 1


@pytest.mark.parametrize("probability", [HALF, HUNDREDTH, PAIR])
def test_every_word_gives_the_gap_that_the_thresholds_say(probability):
    """Words at the thresholds, and where the table of leading bits goes from entry to entry."""
    sampler = GapSampler(probability)
    thresholds = sampler._thresholds.tolist()
    near = [threshold + step for threshold in thresholds[-300:] for step in (-1, 0, 1)]
    borders = [(entry << 48) + step for entry in range(0, 2**16 + 1, 7) for step in (-1, 0, 1)]
    words = [word for word in [*near, *borders, 2**64 - 1] if 0 <= word < 2**64]
    expected = [gap_of(word, thresholds) for word in words]
    assert expected == sampler._gaps(np.array(words, np.uint64)).tolist()


# What the result does not depend on


@pytest.mark.parametrize(("name", "probability"), [("gaps", TENTH), ("reach 4", HUNDREDTH)])
def test_selection_does_not_depend_on_how_many_words_are_read(name, probability, make, monkeypatch):
    """So the estimate of their number, the only use of floating point, decides only speed."""
    sampler, keys, dim = make(name, probability), fixed_keys(5), 500
    expected = lists(sampler, keys, dim)
    assert any(expected)
    for words in (1, 2, 3, 50, 1000):
        monkeypatch.setattr(GapSampler, "words_for", lambda self, dim, words=words: words)
        assert expected == lists(sampler, keys, dim)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("gaps", "b5000c885443cd805b18affaca9f98d2efd431056f6d5580b7ca308931ddca68"),
        ("dense", "8057d0afe9fcb609600d1c57cf7bc2c0806b75d86eb4a9b26a3b5201a619833a"),
    ],
)
def test_two_machines_select_the_same(name, digest):
    """The coordinates are what they were where this test was written."""
    positions, _ = SAMPLERS[name](PAIR).select(fixed_keys(20), 165_000)
    assert digest == hashlib.sha256(positions.astype("<i8").tobytes()).hexdigest()


# Laws


@pytest.mark.parametrize("name", ["gaps", "reach 1", "dense"])
def test_probability_1_selects_everything(name, make):
    for dim in (1, 2, 100):
        assert [[*range(dim)]] * 3 == lists(make(name, Fraction(1)), fixed_keys(3), dim)
    positions, counts = make(name, Fraction(1)).select([], 100)
    assert (0, 0) == (positions.size, counts.size)
    assert np.int64 == positions.dtype == counts.dtype


# Distribution; the level of every test is `crypto_reference.LEVEL`


@pytest.mark.parametrize(
    ("name", "probability", "count"),
    [
        ("gaps", HALF, 40_000),
        ("gaps", HUNDREDTH, 40_000),
        ("gaps", Fraction(1, 1000), 40_000),
        ("gaps", Fraction(1, 100_000), 20_000),
        ("reach 4", HALF, 40_000),
        ("reach 4", TENTH, 40_000),
        ("reach 4", Fraction(1, 50), 20_000),
        ("reach 1", Fraction(1, 7), 20_000),
        ("dense", TENTH, 20_000),
    ],
)
def test_gaps_are_geometric_and_independent_of_the_one_before(name, probability, count, make):
    drawn = gaps(make(name, probability), probability, count)
    assert count == drawn.size
    uppers, probabilities = geometric_bins(probability, 64)
    assert_fits(histogram(drawn, uppers), probabilities)

    uppers, _ = geometric_bins(probability, 6)
    bins = np.searchsorted(uppers, drawn, side="left").reshape(-1, 2)
    pairs = np.zeros((len(uppers) + 1, len(uppers) + 1), np.int64)
    np.add.at(pairs, (bins[:, 0], bins[:, 1]), 1)
    assert stats.chi2_contingency(pairs).pvalue > LEVEL


@pytest.mark.parametrize("name", ["gaps", "reach 4", "dense"])
def test_the_number_selected_is_binomial(name, make):
    """Mean, variance and all: with 20,000 keys a mean off by 3 % or a variance by 12 % shows."""
    dim, probability = 400, Fraction(1, 40)
    counts = make(name, probability).select(fixed_keys(20_000, seed=8), dim)[1]
    law = stats.binom(dim, float(probability))
    uppers = np.arange(3, 19)
    probabilities = np.diff(law.cdf(uppers), prepend=0, append=1)
    assert_fits(histogram(counts, uppers), probabilities)


@pytest.mark.parametrize(
    ("name", "probability"),
    [("gaps", HALF), ("reach 2", Fraction(2, 5)), ("reach 4", HALF), ("dense", Fraction(2, 5))],
)
def test_six_coordinates_have_the_joint_distribution_of_independent_ones(name, probability, make):
    selected = patterns(make(name, probability), fixed_keys(40_000, seed=10), 6)
    seen = np.bincount(selected @ (1 << np.arange(6)), minlength=64)
    ones = np.bitwise_count(np.arange(64)).astype(np.float64)
    expected = float(probability) ** ones * float(1 - probability) ** (6 - ones)
    assert_fits(seen, expected)


# Permutations


@given(seed=st.binary(min_size=16, max_size=40), count=st.integers(0, 300))
def test_a_permutation_has_every_number_once_sorted_by_128_bits_each(seed, count):
    found = permutation(seed, count)
    blocks = [stream_bytes(seed[:16], 16, block=k) for k in range(count)]
    halves = [(block[:8], block[8:]) for block in blocks]
    ranks = [tuple(int.from_bytes(half, "little") for half in two) for two in halves]
    assert sorted(range(count), key=ranks.__getitem__) == found.tolist()
    assert [*range(count)] == sorted(found.tolist())


def test_of_equal_first_halves_the_second_halves_decide(monkeypatch):
    """As unsigned numbers: the highest bit counts most."""
    words = [(5, 2**63), (5, 1), (2**63, 0), (4, 2**64 - 1), (5, 2**63 - 1), (2**64 - 1, 0)]
    content = np.array(words, "<u8").view(np.uint8).reshape(-1)
    monkeypatch.setattr(keystream, "read", lambda keys, sizes: content)
    assert [3, 1, 4, 0, 2, 5] == permutation(bytes(16), 6).tolist()


def test_two_machines_draw_the_same_permutation():
    """It is what it was where this test was written."""
    seed = bytes(range(16))
    expected = [1, 10, 3, 5, 9, 0, 2, 8, 11, 4, 7, 6]
    assert expected == permutation(seed, 12).tolist()
    whole = permutation(seed, 10_000).astype("<i8").tobytes()
    assert (
        "790b0a0383f284e65454debe7056b0e40d5e1eddc6ef6648a6ec6b9881d4ec8c"
        == hashlib.sha256(whole).hexdigest()
    )


def test_a_permutation_follows_from_the_first_16_bytes_of_its_seed():
    seed = bytes(range(16))
    assert permutation(seed, 50).tolist() == permutation(seed + b"more", 50).tolist()
    for place in range(16):
        other = seed[:place] + b"x" + seed[place + 1 :]
        assert permutation(seed, 50).tolist() != permutation(other, 50).tolist()


def test_all_24_permutations_of_4_are_equally_likely():
    seen = [tuple(permutation(seed, 4).tolist()) for seed in fixed_keys(12_000, seed=12)]
    counts = Counter(seen)
    assert 24 == len(counts)
    assert_fits(list(counts.values()), np.ones(24))
