"""The decoded sum is right on average, although coordinates and devices are left out at random.

A device's coordinate reaches the sum with probability p (1 - theta). In the paper vectors are
scaled by beta_i / (p (1 - theta)) before (SparseSecAgg, eqs. 14 to 16). Else they are scaled by
beta_i / p, and the server, who knows whose vectors are in the sum, divides by their weight: then
the mean is that of the survivors, and not only right on average over who drops out.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from protocol_rounds import make, on_ring, play, sent_by
from scipy import stats

DEVICES, BLOCK, ROUNDS, THETA = 12, 40, 120, 0.2
THRESHOLD = 7
# With fresh seeds the test would fail once in a million runs although all is right.
FALSE_ALARM = 1e-6


def decoded_rounds(name, degree, vectors, weights):
    """Return the decoded aggregates of rounds in which each device drops with probability theta.

    Where too few would stay, all dropouts are drawn anew.
    """
    # The elements of a vector are rounded to tenths, of which they have about one.
    options = {"alpha": 0.5, "weights": weights, "levels": 10, "scaling": "paper"}
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
            rounds.append(protocol.aggregate(played.server).mean)
    return np.array(rounds)


def assert_mean(expected, samples, false_alarm):
    """Assert by Student's t that samples may have the expected mean; return the margin."""
    quantile = stats.t.ppf(1 - false_alarm / 2, samples.size - 1)
    margin = float(quantile * samples.std(ddof=1) / np.sqrt(samples.size))
    assert abs(samples.mean() - expected) <= margin
    return margin


@pytest.mark.full
@pytest.mark.parametrize(("name", "degree"), [("secagg", None), ("sparse", None), ("cohort", 8)])
def test_scaled_as_in_the_paper_the_mean_aggregate_is_the_weighted_sum_of_the_vectors(name, degree):
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


WEIGHTS = np.arange(1.0, 13) / 78
GONE = {2: "share_keys", 11: "masked_input", 7: "masked_input"}


def of_survivors(vectors, survivors):
    """Return the weighted sum and mean of the survivors' vectors; all weights add up to 1."""
    weighted = [[WEIGHTS[id] * x for x in vectors[id].tolist()] for id in survivors]
    total = np.array([math.fsum(column) for column in zip(*weighted, strict=True)])
    return total, total / math.fsum(WEIGHTS[id] for id in survivors)


@pytest.mark.parametrize("dropouts", [{}, GONE], ids=["nobody", "three"])
@pytest.mark.parametrize("name", ["fedavg", "secagg", "secagg-graph"])
def test_whole_vectors_give_sum_and_mean_of_the_survivors(name, dropouts):
    protocol = make(name, 12, 30, weights=WEIGHTS, levels=2**20)
    if name == "fedavg":
        dropouts = dict.fromkeys(dropouts, "upload")
    vectors = np.random.default_rng(1).uniform(-1, 1, (12, 30))
    played = play(protocol, vectors, dropouts)
    aggregate = protocol.aggregate(played.server)

    survivors = [id for id in range(12) if id not in dropouts]
    total, mean = of_survivors(vectors, survivors)
    # Twelve roundings of 2^-20 each; of fedavg of 24 bits.
    np.testing.assert_allclose(aggregate.sum, total, atol=12 * 2.0**-20, rtol=0)
    np.testing.assert_allclose(aggregate.mean, mean, atol=20 * 2.0**-20, rtol=0)
    assert math.fsum(WEIGHTS[survivors]) == pytest.approx(aggregate.survived)


@pytest.mark.parametrize(
    ("name", "degree"), [("sparse", None), pytest.param("cohort", 8, marks=pytest.mark.full)]
)
def test_parts_of_vectors_estimate_sum_and_mean_of_the_survivors(name, degree):
    """The same two devices drop out in each of 30 rounds; which coordinates are sent changes.

    Of equal weights the estimate is unbiased, of a cohort's even of a coordinate that each time
    has another number of survivors.
    """
    options = {"alpha": 0.5, "levels": 1000}
    if degree is None:
        protocol = make(name, DEVICES, 40 * DEVICES, dropout=THETA, **options)
    else:
        protocol = on_ring(name, DEVICES, 40 * DEVICES, degree, 2, dropout=THETA, **options)
    vectors = np.repeat(np.linspace(-0.9, 0.9, DEVICES), 40)[None] * np.ones((DEVICES, 1))
    vectors *= np.linspace(0.1, 1, DEVICES)[:, None]
    gone = dict.fromkeys([0, 11], "masked_input")
    means, sums = [], []
    for index in range(ROUNDS // 4):
        aggregate = protocol.aggregate(play(protocol, vectors, gone, index=index).server)
        means.append(aggregate.mean.reshape(DEVICES, 40).mean(axis=1))
        sums.append(aggregate.sum.reshape(DEVICES, 40).mean(axis=1))
    staying = [id for id in range(DEVICES) if id not in gone]
    mean = vectors[staying].mean(axis=0).reshape(DEVICES, 40)[:, 0]
    total = vectors[staying].sum(axis=0).reshape(DEVICES, 40)[:, 0] / DEVICES
    for block in range(DEVICES):
        for found, expected in ((means, mean), (sums, total)):
            samples = np.array(found)[:, block]
            margin = assert_mean(float(expected[block]), samples, FALSE_ALARM / (2 * DEVICES))
            # Without the survivors' weight the mean would be 15 % less.
            assert margin < 0.14 * abs(expected[block]) + 1e-3


@pytest.mark.parametrize("scaling", ["survivors", "paper"])
@pytest.mark.parametrize("phase", ["advertise_keys", "share_keys", "masked_input"])
def test_a_cohorts_mean_is_that_of_those_who_sent_a_coordinate(phase, scaling):
    """Whenever they vanished; by the paper, their sum over m / N (1 - theta)."""
    options = {"alpha": 0.4, "weights": WEIGHTS, "levels": 2**20, "scaling": scaling}
    protocol = make("cohort", 12, 36, **options)
    vectors = np.random.default_rng(2).uniform(-1, 1, (12, 36))
    played = play(protocol, vectors, dict.fromkeys([3, 4, 8], phase), index=1)
    aggregate = protocol.aggregate(played.server)
    senders: dict[int, list[int]] = {at: [] for at in range(36)}
    for id in played.server.survivors:
        for at in sent_by(played, id).tolist():
            senders[at].append(id)
    assert {2, 3, 4, 5} >= {len(ids) for ids in senders.values()}
    expected = []
    for at, ids in senders.items():
        total, weight = sum(WEIGHTS[i] * vectors[i, at] for i in ids), sum(WEIGHTS[i] for i in ids)
        expected.append(total / weight if scaling == "survivors" else total / (5 / 12 * 0.7))
    np.testing.assert_allclose(aggregate.mean, expected, atol=100 * 2.0**-20, rtol=0)
    survived = sum(WEIGHTS[i] for i in range(12) if i not in (3, 4, 8))
    np.testing.assert_allclose(aggregate.sum, np.multiply(expected, survived), atol=1e-4, rtol=0)


def test_a_coordinate_that_nobody_sent_is_zero_and_no_division():
    """Cohorts of 2 of 10; the two of one segment have vanished."""
    protocol = make("cohort", 10, 40, alpha=0.2, levels=10_000)
    order = play(protocol, before="share_keys").order()
    gone = dict.fromkeys(order[3:5], "masked_input")
    played = play(protocol, np.full((10, 40), 0.5), gone)
    mean = protocol.aggregate(played.server).mean
    sent = {at for id in played.server.survivors for at in sent_by(played, id).tolist()}
    nobody = [at for at in range(40) if at not in sent]
    assert 4 == len(nobody)
    assert [0.0] * 4 == mean[nobody].tolist()
    np.testing.assert_allclose(mean[sorted(sent)], 0.5, atol=1e-3, rtol=0)
