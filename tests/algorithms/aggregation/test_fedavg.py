"""FedAvg in the clear: the sum of the weighted vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from protocol_rounds import make, play

from hpcfl.algorithms import locations
from hpcfl.errors import MessageError

NOTHING = np.zeros(300, np.float32)


def test_the_total_is_the_sum_of_the_weighted_vectors_in_float64():
    """Multiples of 2**-20 weighted by 1/8 are exact in float32, and so is their sum in float64."""
    generator = np.random.default_rng(0)
    vectors = generator.integers(-(2**20), 2**20, (8, 500)) / 2**20
    protocol = make("fedavg", 8, 500, dropout=0.0)
    played = play(protocol, vectors)

    assert (vectors.sum(axis=0) / 8).tolist() == played.server.total.tolist()
    assert played.server.total.tolist() == protocol.decode(played.server.total).tolist()
    assert list(range(8)) == played.server.survivors
    assert (vectors[2] / 8).astype("<f4").tobytes() == played.sent("upload")[2]
    # In float32, 1 + 2**-30 is 1.
    vectors = np.array([[1.0], [2.0**-30], [-1.0], [2.0**-30]])
    played = play(make("fedavg", 4, 1, dropout=0.0), vectors)
    assert [2.0**-31] == played.server.total.tolist()


@pytest.mark.parametrize(("scaling", "planned"), [("survivors", 1.0), ("paper", 0.75)])
def test_weights_and_dropouts_scale_the_vectors(scaling, planned):
    generator = np.random.default_rng(1)
    weights = generator.dirichlet(np.ones(12))
    vectors = generator.standard_normal((12, 200))
    protocol = make("fedavg", 12, 200, weights=weights, dropout=0.25, scaling=scaling)
    played = play(protocol, vectors, dict.fromkeys([0, 5, 11], "upload"))

    staying = [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert staying == played.server.survivors
    sent = [(vectors[id] * (weights[id] / planned)).astype(np.float32) for id in staying]
    total = [math.fsum(float(one[k]) for one in sent) for k in range(200)]
    # Adding nine numbers in turn is off by at most eight roundings of the largest partial sum.
    bound = 8 * 2.0**-53 * np.sum(np.abs(sent), axis=0)
    assert np.all(np.abs(played.server.total - total) <= bound)


@pytest.mark.parametrize("size", [0, 7, 8, 9, 16, 19, 21, 24, 40])
def test_the_server_refuses_a_vector_of_another_size_or_cut_short(size):
    server = make("fedavg", 3, 5).server(0, np.zeros(5, np.float32))
    # A bitmap of five locations, three of them in use, and two of three values.
    sparse = bytes([0, 0, 0, 0, 3, 0, 0, 0, 0b10101000]) + np.ones(2, "<f4").tobytes()

    with pytest.raises(MessageError) as caught:
        server.receive_upload(1, np.resize(np.frombuffer(sparse, np.uint8), size))
    assert ("upload", "device 1") == (caught.value.phase, caught.value.sender)
    assert server.survivors == []
    assert not server.total.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_server_refuses_what_would_make_the_sum_worthless(value):
    server = make("fedavg", 3, 5).server(0, np.zeros(5, np.float32))
    vector = np.array([1, 2, value, 4, 5], "<f4")
    with pytest.raises(MessageError, match="a value is not finite"):
        server.receive_upload(1, vector.view(np.uint8))
    assert ([], 0) == (server.survivors, server.total.sum())
    server.receive_upload(1, np.ones(5, "<f4").view(np.uint8))
    with pytest.raises(MessageError, match="it was received twice"):
        server.receive_upload(1, np.ones(5, "<f4").view(np.uint8))
    assert 5 == server.total.sum()


@pytest.mark.parametrize("coding", ["auto", "bitmap", "gaps"])
@pytest.mark.parametrize("nonzero", [0, 1, 290, 299, 300])
def test_zeros_are_left_out_where_that_is_shorter(coding, nonzero):
    """With 300 coordinates, a bitmap of locations takes 38 bytes and their header 8."""
    generator = np.random.default_rng(nonzero)
    vectors = np.zeros((3, 300))
    for vector in vectors:
        where = generator.permutation(300)[:nonzero]
        vector[where] = generator.standard_normal(nonzero)
    protocol = make("fedavg", 3, 300, dropout=0.0, locations=coding)
    played = play(protocol, vectors)

    for id, payload in played.sent("upload").items():
        located = locations.encode(np.flatnonzero(vectors[id]), 300, coding)
        assert len(payload) == min(1200, located.size + 4 * nonzero)
        with pytest.raises(MessageError, match="bytes, expected"):
            protocol.server(0, NOTHING).receive_upload(id, np.frombuffer(payload + b"\0", np.uint8))
    expected = (vectors / 3).astype(np.float32).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(played.server.total, expected, rtol=0, atol=1e-15)
