"""The decoded sum is right on average, although coordinates and devices are left out at random.

A device's coordinate reaches the sum with probability p (1 - theta), so the vectors are scaled by
beta_i / (p (1 - theta)) before (SparseSecAgg, eqs. 14 to 16).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from protocol_rounds import make, play
from scipy import stats

DEVICES, BLOCK, ROUNDS, THETA = 20, 12, 120, 0.1
ALARM = 1e-6


def decoded_rounds(
    name: str, vectors: NDArray[np.float64], **options: object
) -> NDArray[np.float64]:
    """Return the decoded aggregates of rounds in which each device drops with probability theta.

    Fewer than 11 of 20 devices stay with probability 7e-6; the fixed seeds of this test do not
    draw it, and leaving such rounds out moves no expectation by more than that.
    """
    protocol = make(name, DEVICES, vectors.shape[1], dropout=THETA, **options)
    generator = np.random.default_rng(7)
    rounds = []
    for index in range(ROUNDS):
        gone = np.flatnonzero(generator.random(DEVICES) < THETA).tolist()
        dropouts = dict.fromkeys(gone, "masked_input")
        played = play(protocol, vectors, dropouts, index=index)
        rounds.append(protocol.decode(played.server.total))
    return np.array(rounds)


def assert_mean(expected: float, samples: NDArray[np.float64], alarm: float) -> float:
    """Return by how much the samples' mean may be off, after asserting that it is not by more.

    By Student's t; with fresh seeds this fails with probability `alarm` although all is right.
    """
    quantile = stats.t.ppf(1 - alarm / 2, samples.size - 1)
    margin = float(quantile * samples.std(ddof=1) / np.sqrt(samples.size))
    assert abs(samples.mean() - expected) <= margin
    return margin


@pytest.mark.parametrize("name", ["secagg", "sparse"])
def test_the_mean_aggregate_is_the_weighted_sum_of_the_vectors(name: str) -> None:
    """One block of coordinates a device, where only its vector is not zero, and a common one.

    With ten levels, the elements of a vector are rounded to tenths, of which they have about one.
    """
    weights = np.arange(1.0, DEVICES + 1)
    weights /= weights.sum()
    vectors = np.zeros((DEVICES, (DEVICES + 1) * BLOCK))
    own = np.linspace(-0.9, 0.9, DEVICES)
    for id in range(DEVICES):
        vectors[id, id * BLOCK : (id + 1) * BLOCK] = own[id]
        vectors[id, -BLOCK:] = 0.5 + 0.02 * id
    rounds = decoded_rounds(name, vectors, alpha=0.5, weights=weights, levels=10)
    blocks = rounds.reshape(ROUNDS, DEVICES + 1, BLOCK).mean(axis=2)

    alarm = ALARM / 2 / (DEVICES + 1)
    for id in range(DEVICES):
        assert_mean(weights[id] * own[id], blocks[:, id], alarm)
    together = float(weights @ vectors[:, -1])
    margin = assert_mean(together, blocks[:, -1], alarm)
    # Without the factor 1 / (1 - theta) the mean would be 10 % less: twice what is tolerated.
    assert margin < 0.05 * together
