"""The decoded sum is right on average, although coordinates and devices are left out at random.

A device's coordinate reaches the sum with probability p (1 - theta). In the paper vectors are
scaled by beta_i / (p (1 - theta)) before (SparseSecAgg, eqs. 14 to 16). Else they are scaled by
beta_i / p, and the server, who knows whose vectors are in the sum, divides by their weight: then
the mean is that of the survivors, and not only right on average over who drops out.
"""

from __future__ import annotations

import numpy as np
import pytest
from protocol_rounds import make, on_ring, play, sent_by
from scipy import stats

DEVICES, BLOCK, ROUNDS, THETA = 12, 40, 120, 0.2
# With fresh seeds the test would fail once in a million runs although all is right.
FALSE_ALARM = 1e-6


def assert_mean(expected, samples, false_alarm):
    """Assert by Student's t that samples may have the expected mean; return the margin."""
    quantile = stats.t.ppf(1 - false_alarm / 2, samples.size - 1)
    margin = float(quantile * samples.std(ddof=1) / np.sqrt(samples.size))
    assert abs(samples.mean() - expected) <= margin
    return margin


WEIGHTS = np.arange(1.0, 13) / 78


@pytest.mark.parametrize(
    ("name", "degree"), [("sparse", None), pytest.param("cohort", 8, marks=pytest.mark.full)]
)
def test_parts_of_vectors_estimate_sum_and_mean_of_the_survivors(name, degree):
    """The same two devices drop out in each of 30 rounds; which coordinates are sent changes.

    Of equal weights the estimate is unbiased, of a cohort's even of a coordinate that each time
    has another number of survivors.
    """
    options = {"alpha": 0.5, "levels": 1000}
    if name == "sparse":
        planned = make(name, DEVICES, 40, dropout=THETA, scaling="paper", **options)
        p = 1 - (1 - 0.5 / (DEVICES - 1)) ** (DEVICES - 1)
        assert planned.divisor == pytest.approx(p * (1 - THETA))
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
