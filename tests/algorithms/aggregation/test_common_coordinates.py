"""The coordinates that all devices send: as many as asked for, drawn fairly, the same for all."""

from __future__ import annotations

import numpy as np

from hpcfl.algorithms.aggregation.common import CommonCoordinates
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played


def test_a_round_has_alpha_d_coordinates_and_another_one_others():
    protocol = CommonCoordinates(Parameters(5, 1000, alpha=0.13))
    first, second = protocol.sent_in(0), protocol.sent_in(1)

    assert len({*first.tolist()}) == len({*second.tolist()}) == 130
    assert {*first.tolist()} != {*second.tolist()}
    assert protocol.sent_in(0).tolist() == first.tolist()


def test_every_coordinate_is_sent_equally_often():
    protocol = CommonCoordinates(Parameters(3, 50, alpha=0.2))
    rounds = 2000
    counts = sum(np.bincount(protocol.sent_in(index), minlength=50) for index in range(rounds))

    # Of a binomial number of rounds; over six standard deviations are allowed.
    np.testing.assert_allclose(counts / rounds, 0.2, atol=0.056)


def test_the_sum_is_that_of_the_survivors_over_the_part_that_is_sent(tmp_path):
    saved = tmp_path / "sum.npy"
    options = BenchOptions("common", dim=200, rounds=1, warmup=0, alpha=0.25, save_aggregate=saved)
    experiment = Experiment.prepare(options, 8)
    protocol, rounds = experiment.protocol, Results[Played]()
    assert isinstance(protocol, CommonCoordinates)
    experiment.run(Loopback(8), rounds)
    survivors = np.flatnonzero(rounds.records[0].survived).tolist()
    sent, expected = protocol.sent_in(0), np.zeros(200)
    expected[sent] = 4 * np.sum(
        [experiment.updates.vector(0, id)[sent] for id in survivors], axis=0
    )

    assert len(survivors) == 6
    np.testing.assert_allclose(np.load(saved), expected, atol=1e-3)
