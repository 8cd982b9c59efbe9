"""Sums at the edges: largest levels, few devices, other scalings, parts, and in the clear."""

from __future__ import annotations

import numpy as np
import pytest
from protocol_rounds import SECURE, UPLOADING, make, play, sent_by
from slow_ring import segments

from hpcfl.algorithms import locations
from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import largest_levels
from hpcfl.crypto.groups import GROUPS
from hpcfl.errors import MessageError, UsageError


@pytest.mark.parametrize("name", SECURE)
def test_a_protocol_of_pairs_needs_two_devices(name):
    with pytest.raises(UsageError, match=f"{name} needs at least 2 devices, but there are 1"):
        find(name)(Parameters(1, 5))


@pytest.mark.parametrize("group", ["fq", "ring32", "ring12"])
@pytest.mark.parametrize("name", UPLOADING)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_largest_admissible_levels_do_not_wrap_around(name, group, side):
    options = {"group": group, "alpha": 1.0, "dropout": 0.0, "clip": 0.5, "levels": 1}
    tentative = make(name, 8, 40, **options)
    protocol = make(name, 8, 40, **options | {"levels": tentative.largest_levels()})
    played = play(protocol, np.full((8, 40), side))

    played.goes_on()
    # Where all eight devices contributed, the sum is within their rounding of the half range.
    assert tentative.summed_in.half_range - 16 <= int(np.abs(played.server.total).max())


@pytest.mark.parametrize("group", ["fq", "ring32", "ring12"])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_nor_do_they_where_devices_vanish_before_there_is_a_ring(side, group):
    """Of 10 devices 3 make a cohort, whoever vanishes: vectors are scaled by 10 / 3.

    One device has all the weight, so that its vector alone is at the end of the range.
    """
    weights = np.zeros(10)
    weights[5] = 1
    options = {"group": group, "alpha": 0.25, "clip": 0.5, "weights": weights}
    # Of the ten devices three are in a coordinate's sum, and round.
    levels = largest_levels(GROUPS[group], 3, 0.5, 3 / 10)
    with pytest.raises(UsageError, match=f"number of levels is {levels}"):
        make("cohort", 10, 40, **options, levels=levels + 1)
    protocol = make("cohort", 10, 40, **options, levels=levels)
    gone = dict.fromkeys([0, 9], "advertise_keys")
    played = play(protocol, np.full((10, 40), side), gone)

    played.goes_on()
    assert protocol.summed_in.half_range - 20 <= int(np.abs(played.server.total).max())


def test_a_device_that_selects_nothing_sends_no_value_and_is_a_survivor():
    played = play(make("sparse", 4, 3, alpha=1e-6, levels=1))

    assert [0, 1, 2, 3] == played.server.survivors
    assert [0, 0, 0] == played.server.total.tolist()
    assert [8 + 0] * 4 == [len(payload) for payload in played.sent("masked_input").values()]


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


# common: the same part of the coordinates of all


def test_a_round_has_alpha_d_coordinates_in_the_order_of_the_steps_and_another_one_others():
    protocol = make("common", 5, 1000, alpha=0.13)
    first, second = (protocol.sent_in(index).tolist() for index in (0, 1))
    (dealt,) = segments(1000, 1)
    place = dealt.index(first[0])

    assert (dealt + dealt)[place : place + 130] == first
    assert len({*first}) == len({*second}) == 130
    assert {*first} != {*second}


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_the_sum_is_that_of_the_survivors_over_the_part_that_is_sent(alpha):
    """All coordinates are sent in the order of the steps, too."""
    protocol = make("common", 8, 200, alpha=alpha, levels=10**6)
    played = play(protocol, dropouts={1: "masked_input", 4: "share_keys"}, index=3)
    survivors = [0, 2, 3, 5, 6, 7]
    played.goes_on(survivors)
    sent, expected = protocol.sent_in(3), np.zeros(200)
    vectors = np.clip(played.vectors, -1, 1)
    expected[sent] = vectors[survivors].mean(axis=0)[sent] / alpha
    np.testing.assert_allclose(protocol.aggregate(played.server).mean, expected, atol=1e-4)


# fedavg: the sum of the weighted vectors in the clear


def test_the_total_is_the_sum_of_the_weighted_vectors_in_float64():
    """Multiples of 2**-20 weighted by 1/8 are exact in float32, and so is their sum in float64."""
    vectors = np.random.default_rng(0).integers(-(2**20), 2**20, (8, 500)) / 2**20
    protocol = make("fedavg", 8, 500, dropout=0.0)
    played = play(protocol, vectors)

    assert (vectors.sum(axis=0) / 8).tolist() == played.server.total.tolist()
    assert played.server.total.tolist() == protocol.decode(played.server.total).tolist()
    assert (vectors[2] / 8).astype("<f4").tobytes() == played.sent("upload")[2]
    # In float32, 1 + 2**-30 is 1.
    vectors = np.array([[1.0], [2.0**-30], [-1.0], [2.0**-30]])
    played = play(make("fedavg", 4, 1, dropout=0.0), vectors)
    assert [2.0**-31] == played.server.total.tolist()


@pytest.mark.parametrize("coding", ["auto", "bitmap", "gaps"])
@pytest.mark.parametrize("nonzero", [0, 1, 290, 299, 300])
def test_zeros_are_left_out_where_that_is_shorter(coding, nonzero):
    """With 300 coordinates, a bitmap of locations takes 38 bytes and their header 8."""
    generator = np.random.default_rng(nonzero)
    vectors = np.zeros((3, 300))
    for vector in vectors:
        vector[generator.permutation(300)[:nonzero]] = generator.standard_normal(nonzero)
    protocol = make("fedavg", 3, 300, dropout=0.0, locations=coding)
    played = play(protocol, vectors)

    for id, payload in played.sent("upload").items():
        located = locations.encode(np.flatnonzero(vectors[id]), 300, coding)
        assert len(payload) == min(1200, located.size + 4 * nonzero)
        server = protocol.server(0, np.zeros(300, np.float32))
        for wrong in (payload + b"\0", payload[:-1], payload[:7]):
            with pytest.raises(MessageError):
                server.receive_upload(id, np.frombuffer(wrong, np.uint8))
        assert ([], 0) == (server.survivors, server.total.sum())
    expected = (vectors / 3).astype(np.float32).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(played.server.total, expected, rtol=0, atol=1e-15)
