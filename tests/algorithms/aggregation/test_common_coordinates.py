"""The coordinates that all devices send: as many as asked for, drawn fairly, the same for all."""

from __future__ import annotations

import numpy as np
import pytest
from protocol_rounds import make, play
from slow_ring import segments


def test_a_round_has_alpha_d_coordinates_in_the_order_of_the_steps_and_another_one_others():
    protocol = make("common", 5, 1000, alpha=0.13)
    first, second = (protocol.sent_in(index).tolist() for index in (0, 1))
    (dealt,) = segments(1000, 1)
    place = dealt.index(first[0])

    assert (dealt + dealt)[place : place + 130] == first
    assert len({*first}) == len({*second}) == 130
    assert {*first} != {*second}
    assert protocol.sent_in(0).tolist() == first


def test_every_coordinate_is_sent_equally_often():
    protocol = make("common", 3, 50, alpha=0.2)
    rounds = 2000
    counts = sum(np.bincount(protocol.sent_in(index), minlength=50) for index in range(rounds))
    # Of a binomial number of rounds; over six standard deviations are allowed.
    np.testing.assert_allclose(counts / rounds, 0.2, atol=0.056)


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_the_sum_is_that_of_the_survivors_over_the_part_that_is_sent(alpha):
    """All coordinates are sent in the order of the steps, too."""
    protocol = make("common", 8, 200, alpha=alpha, levels=10**6)
    played = play(protocol, dropouts={1: "masked_input", 4: "share_keys"}, index=3)
    survivors = [0, 2, 3, 5, 6, 7]
    played.goes_on(survivors)
    vectors = np.clip(played.vectors, -1, 1)
    sent, expected = protocol.sent_in(3), np.zeros(200)
    expected[sent] = vectors[survivors].mean(axis=0)[sent] / alpha
    np.testing.assert_allclose(protocol.aggregate(played.server).mean, expected, atol=1e-4)
