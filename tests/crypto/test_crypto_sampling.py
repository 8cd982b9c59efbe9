"""The sampler draws i.i.d. Bernoulli patterns, and permutations are uniform; from integers."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from crypto_reference import (
    exact_thresholds,
    fixed_keys,
    select_by_gaps,
    stream_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.crypto import keystream
from hpcfl.crypto.sampling import GapSampler, permutation

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

    return make_sampler


def lists(sampler, keys, dim):
    """Return the coordinates that each key selects."""
    positions, counts = sampler.select(keys, dim)
    assert counts.shape == (len(keys),)
    assert counts.sum() == positions.size
    ends = np.cumsum(counts)
    return [part.tolist() for part in np.split(positions, ends[:-1])]


# The definition


@pytest.mark.parametrize(
    ("name", "probability"),
    [
        ("gaps", HALF),
        ("reach 1", TENTH),
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


def test_two_machines_select_the_same():
    """The coordinates are what they were where this test was written."""
    digest = "a8aeb5c3232415e7047e065f22bd9196944c701f2f1ac66f93aefaaaef214bf6"
    positions, _ = GapSampler(PAIR).select(fixed_keys(20), 165_000)
    assert digest == hashlib.sha256(positions.astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["gaps", "reach 1"])
def test_probability_1_selects_everything(name, make):
    for dim in (1, 2, 100):
        assert [[*range(dim)]] * 3 == lists(make(name, Fraction(1)), fixed_keys(3), dim)
    positions, counts = make(name, Fraction(1)).select([], 100)
    assert (0, 0) == (positions.size, counts.size)
    assert np.int64 == positions.dtype == counts.dtype


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
