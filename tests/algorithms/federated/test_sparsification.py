"""rand-k and top-k: what is chosen, what is sent, what is remembered."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcfl.algorithms.federated.sparsification import (
    RandK,
    TopK,
    pairwise_overlap,
)

# Of the tests that draw at random: they would fail once in a million seeds although all is right.
FALSE_ALARM = 1e-6


def made(kind, alpha, seed, feedback=False):
    return kind(SimpleNamespace(seed=seed), alpha, feedback)


def update_of(seed, dim=200):
    return np.random.default_rng(seed).standard_normal(dim).astype(np.float32)


def test_top_k_sends_the_largest_magnitudes_as_they_are():
    update = update_of(2)
    sent = made(TopK, 0.1, seed=0).sparsify(update, 0, 0)
    largest = sorted(range(200), key=lambda k: -abs(float(update[k])))[:20]

    assert np.flatnonzero(sent).tolist() == sorted(largest)
    assert sent[largest].tolist() == update[largest].tolist()


def test_rand_k_draws_every_coordinate_equally_often_and_is_unbiased():
    update = np.arange(1, 51, dtype=np.float32)
    sparsifier = made(RandK, 0.2, seed=4)
    rounds = 4000
    sent = np.array([sparsifier.sparsify(update, 0, r) for r in range(rounds)])

    np.testing.assert_array_equal(np.unique(sent / update), [0, 5])
    counts = (sent != 0).sum(axis=0)
    # A count is binomial; 50 of them, two sides each.
    low, high = stats.binom.ppf([FALSE_ALARM / 100, 1 - FALSE_ALARM / 100], rounds, 0.2)
    assert low <= counts.min()
    assert counts.max() <= high


def test_rand_k_depends_on_seed_device_and_round_and_on_nothing_else():
    def chosen(seed, device, round_index, data=0):
        sparsifier = made(RandK, 0.1, seed)
        sparsifier.sparsify(update_of(data), device, round_index)
        return sparsifier.selected[device].tolist()

    assert chosen(1, 2, 3) == chosen(1, 2, 3, data=9)
    assert len({tuple(chosen(*which)) for which in itertools.product((1, 2), repeat=3)}) == 8


@pytest.mark.parametrize("kind", [RandK, TopK])
def test_with_error_feedback_nothing_of_any_update_is_lost(kind):
    """What was sent so far plus what is remembered is the sum of the updates, and it is sent."""
    sparsifier = made(kind, 0.1, seed=5, feedback=True)
    learned, sent = np.zeros(200), np.zeros(200)
    for round_index in range(400):
        update = update_of(round_index) if round_index < 20 else np.zeros(200, np.float32)
        learned += update
        sent += sparsifier.sparsify(update, 7, round_index)
        if round_index == 19:
            assert np.abs(learned - sent).max() > 1

    # top-k empties its memory in ten rounds; rand-k leaves a coordinate out 380 times with
    # probability 0.9**380, 4e-18.
    np.testing.assert_allclose(sent, learned, rtol=0, atol=1e-4)
    # Another device remembers nothing of them.
    fresh = made(kind, 0.1, seed=5, feedback=True)
    one, other = (each.sparsify(update_of(2), 1, 0).tolist() for each in (sparsifier, fresh))
    assert one == other


@given(st.lists(st.sets(st.integers(0, 29), min_size=6, max_size=6), min_size=2, max_size=8))
def test_the_overlap_is_the_mean_over_all_pairs(chosen):
    pairs = list(itertools.combinations(chosen, 2))
    expected = sum(len(one & two) / 6 for one, two in pairs) / len(pairs)
    counts = np.bincount([place for one in chosen for place in one], minlength=30)

    assert pairwise_overlap(counts, len(chosen), 6) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(pairwise_overlap(np.array([0, 1, 1]), 1, 2))
