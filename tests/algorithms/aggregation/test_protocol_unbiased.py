"""The decoded sum is right on average, although coordinates and devices are left out at random.

A device's coordinate reaches the sum with probability p (1 - theta), so the vectors are scaled by
beta_i / (p (1 - theta)) before (SparseSecAgg, eqs. 14 to 16).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import make, on_ring, play
from scipy import stats

DEVICES, BLOCK, ROUNDS, THETA = 20, 40, 120, 0.2
THRESHOLD = 11
# With fresh seeds the test would fail once in a million runs although all is right.
FALSE_ALARM = 1e-6


def decoded_rounds(
    name: str, degree: int | None, vectors: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the decoded aggregates of rounds in which each device drops with probability theta.

    Where too few would stay, all dropouts are drawn anew.
    """
    # The elements of a vector are rounded to tenths, of which they have about one.
    options = {"alpha": 0.5, "weights": weights, "levels": 10}
    if degree is None:
        protocol = make(name, DEVICES, vectors.shape[1], dropout=THETA, **options)
    else:
        protocol = on_ring(name, DEVICES, vectors.shape[1], degree, 2, dropout=THETA, **options)
    generator = np.random.default_rng(7)
    rounds = []
    while len(rounds) < ROUNDS:
        gone = np.flatnonzero(generator.random(DEVICES) < THETA).tolist()
        if DEVICES - len(gone) >= THRESHOLD:
            dropouts = dict.fromkeys(gone, "masked_input")
            played = play(protocol, vectors, dropouts, index=len(rounds))
            rounds.append(protocol.decode(played.server.total))
    return np.array(rounds)


def assert_mean(expected: float, samples: NDArray[np.float64], false_alarm: float) -> float:
    """Assert by Student's t that samples may have the expected mean; return the margin."""
    quantile = stats.t.ppf(1 - false_alarm / 2, samples.size - 1)
    margin = float(quantile * samples.std(ddof=1) / np.sqrt(samples.size))
    assert abs(samples.mean() - expected) <= margin
    return margin


@pytest.mark.parametrize(("name", "degree"), [("secagg", None), ("sparse", None), ("cohort", 8)])
def test_the_mean_aggregate_is_the_weighted_sum_of_the_vectors(
    name: str, degree: int | None
) -> None:
    """One block of coordinates a device, where only its vector is not zero, and a common one."""
    weights = np.arange(1.0, DEVICES + 1)
    weights /= weights.sum()
    vectors = np.zeros((DEVICES, (DEVICES + 1) * BLOCK))
    own = np.linspace(-0.9, 0.9, DEVICES)
    for id in range(DEVICES):
        vectors[id, id * BLOCK : (id + 1) * BLOCK] = own[id]
        vectors[id, -BLOCK:] = 0.5 + 0.02 * id
    blocks = decoded_rounds(name, degree, vectors, weights)
    blocks = blocks.reshape(ROUNDS, DEVICES + 1, BLOCK).mean(axis=2)

    # A device stays a little more often than with 1 - theta where enough others stay as well.
    stays = stats.binom.sf(THRESHOLD - 2, DEVICES - 1, 1 - THETA)
    stays /= stats.binom.sf(THRESHOLD - 1, DEVICES, 1 - THETA)
    false_alarm = FALSE_ALARM / (DEVICES + 1)
    for id in range(DEVICES):
        assert_mean(stays * weights[id] * own[id], blocks[:, id], false_alarm)
    together = stays * float(weights @ vectors[:, -1])
    margin = assert_mean(together, blocks[:, -1], false_alarm)
    # Without the factor 1 / (1 - theta) the mean would be 20 % less.
    assert margin < 0.1 * together


@pytest.mark.parametrize(("devices", "alpha"), [(10, 0.2), (10, 0.3), (20, 0.1)])
def test_a_cohorts_sum_is_right_where_devices_vanish_before_there_is_a_ring(
    devices: int, alpha: float
) -> None:
    """All have the same vector and weight, and as many vanish as expected: nothing is random."""
    options = {"alpha": alpha, "dropout": 0.1, "levels": 10_000}
    protocol = make("cohort", devices, 40, **options)
    gone = dict.fromkeys(range(devices // 10), "advertise_keys")
    played = play(protocol, np.full((devices, 40), 0.5), gone)

    # The elements of a vector are rounded to 1 in 10,000, those of a sum to a few.
    assert np.abs(protocol.decode(played.server.total) - 0.5).max() < 0.001
