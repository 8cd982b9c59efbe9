"""FedAvg in the clear: the sum of the weighted vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from protocol_rounds import make, play

from hpcfl.errors import BelowThresholdError, MessageError


def test_the_total_is_the_sum_of_the_weighted_vectors_in_float64() -> None:
    """Multiples of 2**-20 weighted by 1/8 are exact in float32, and so is their sum in float64."""
    generator = np.random.default_rng(0)
    vectors = generator.integers(-(2**20), 2**20, (8, 500)) / 2**20
    protocol = make("fedavg", 8, 500, dropout=0.0)
    played = play(protocol, vectors)

    assert (vectors.sum(axis=0) / 8).tolist() == played.server.total.tolist()
    assert played.server.total.tolist() == protocol.decode(played.server.total).tolist()
    assert list(range(8)) == played.server.survivors


def test_weights_and_dropouts_scale_the_vectors() -> None:
    generator = np.random.default_rng(1)
    weights = generator.dirichlet(np.ones(12))
    vectors = generator.standard_normal((12, 200))
    protocol = make("fedavg", 12, 200, weights=weights, dropout=0.25)
    played = play(protocol, vectors, dict.fromkeys([0, 5, 11], "upload"))

    staying = [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert staying == played.server.survivors
    sent = [(vectors[id] * (weights[id] / 0.75)).astype(np.float32) for id in staying]
    total = [math.fsum(float(one[k]) for one in sent) for k in range(200)]
    # Adding nine numbers in turn is off by at most eight roundings of the largest partial sum.
    bound = 8 * 2.0**-53 * np.sum(np.abs(sent), axis=0)
    assert np.all(np.abs(played.server.total - total) <= bound)


def test_vectors_are_summed_in_float64_not_float32() -> None:
    """In float32, 1 + 2**-30 is 1."""
    vectors = np.array([[1.0], [2.0**-30], [-1.0], [2.0**-30]])
    played = play(make("fedavg", 4, 1, dropout=0.0), vectors)

    assert [2.0**-31] == played.server.total.tolist()


@pytest.mark.parametrize("devices", [1, 4])
def test_a_round_without_uploads_fails_with_a_sentence(devices: int) -> None:
    with pytest.raises(BelowThresholdError, match="no device sent its vector: there is nothing to"):
        play(make("fedavg", devices, 5), dropouts=dict.fromkeys(range(devices), "upload"))


def test_one_upload_is_enough() -> None:
    played = play(make("fedavg", 3, 5, dropout=0.0), np.ones((3, 5)), {0: "upload", 1: "upload"})

    assert [2] == played.server.survivors
    np.testing.assert_allclose(played.server.total, np.full(5, 1 / 3), rtol=1e-7)


@pytest.mark.parametrize("size", [0, 19, 21, 40])
def test_the_server_refuses_a_vector_of_another_size(size: int) -> None:
    server = make("fedavg", 3, 5).server(0, np.zeros(5, np.float32))

    with pytest.raises(MessageError, match=f"{size} bytes came, 20 were expected") as caught:
        server.receive_upload(1, np.zeros(size, np.uint8))
    assert ("upload", "device 1") == (caught.value.phase, caught.value.sender)


def test_an_upload_is_the_float32_vector_itself() -> None:
    vectors = np.random.default_rng(2).standard_normal((4, 30))
    played = play(make("fedavg", 4, 30, dropout=0.0), vectors)

    for id, payload in played.sent("upload").items():
        assert (vectors[id] / 4).astype("<f4").tobytes() == payload
