"""Devices that are sent only what has changed have the model that the server has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.aggregation.modelupdates import ModelUpdates
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.loopback import Loopback
from hpcfl.errors import HpcflError
from hpcfl.rounds.timed import play

POPULATION, DIM = 6, 40


class Watched(Loopback):
    """A loopback that keeps how large the messages with the model were, by device."""

    def __init__(self, devices):
        super().__init__(devices)
        self.sizes = {}

    def broadcast(self, message, error=None):
        if not self.sizes:
            self.sizes = dict.fromkeys(range(self.placement.devices), message.size - 16)
        return super().broadcast(message, error)

    def scatter(self, receivers, produce):
        sizes = {}
        for id, message in super().scatter(receivers, produce):
            sizes[id] = message.size - 16
            yield id, message
        self.sizes = self.sizes or sizes


def protocol_of(devices, alpha=0.2):
    options = {"alpha": alpha, "model_update": "changed", "levels": 1000, "dropout": 0.0}
    return find("common")(Parameters(devices, DIM, **options))


def play_round(models, index, ids, model):
    """Play a round of some devices; return their models, and the bytes with which these came."""
    protocol, transport, had = protocol_of(len(ids)), Watched(len(ids)), {}

    def prepare(live):
        had.update({ids[slot]: device.model.copy() for slot, device in live.items()})

    played = play(
        protocol,
        transport,
        index=index,
        model=model,
        inputs=lambda slot: np.full(DIM, 0.5, np.float32),
        prepare=prepare,
        dropouts={},
        insecure_seed=1,
        members=ids,
        models=models,
    )
    assert played.record.validated
    model -= played.aggregate.mean.astype(np.float32)
    phase = protocol.phases().index("model")
    counted = dict(zip(ids, played.record.bytes_down[phase].tolist(), strict=True))
    sizes = {ids[slot]: size for slot, size in transport.sizes.items()}
    return had, sizes, counted


@given(
    rounds=st.lists(
        st.sets(st.integers(0, POPULATION - 1), min_size=2).map(sorted), min_size=1, max_size=8
    ),
    elsewhere=st.sets(st.integers(0, 7)),
)
def test_whoever_misses_rounds_is_sent_what_changed_meanwhile(rounds, elsewhere):
    """Or the whole model: where it is no more, or something else has changed as well."""
    protocol = protocol_of(2)
    models = ModelUpdates(POPULATION, DIM, protocol.sent_in)
    model, last = np.zeros(DIM, np.float32), {}
    for index, ids in enumerate(rounds):
        if index in elsewhere:
            # Coordinates that round 0 to index did not all change.
            model += np.arange(1, DIM + 1, dtype=np.float32)
        had, sizes, counted = play_round(models, index, ids, before := model.copy())
        for id in ids:
            assert np.array_equal(had[id], model), (index, id)
            whole = 4 * DIM
            since = range(last[id], index) if id in last else None
            if since is None or any(one in elsewhere for one in range(last[id] + 1, index + 1)):
                expected = {whole}
            else:
                missed = {int(at) for one in since for at in protocol.sent_in(one)}
                expected = {4 * len(missed)}
            assert sizes[id] in expected
            assert counted[id] == sizes[id] + 16
            last[id] = index
        model = before


def test_a_device_refuses_what_is_neither_the_model_nor_what_it_lacks():
    models = ModelUpdates(2, DIM, protocol_of(2).sent_in)
    model = np.zeros(DIM, np.float32)
    play_round(models, 0, [0, 1], model)
    protocol = protocol_of(2)
    protocol.follow(models, 1, [0, 1])
    device = protocol.device(0, 1, lambda size: bytes(size))
    size = 4 * protocol.sent_in(0).size
    device.receive_model(np.zeros(size, np.uint8))
    for wrong in (0, 4, 7, size - 4, size + 4, 4 * DIM - 4, 4 * DIM + 4):
        with pytest.raises(HpcflError, match=f"{wrong} bytes are neither the model nor what"):
            device.receive_model(np.zeros(wrong, np.uint8))


def test_a_device_without_a_model_refuses_a_part_of_one():
    models, protocol = ModelUpdates(2, DIM, protocol_of(2).sent_in), protocol_of(2)
    protocol.follow(models, 0, [0, 1])
    for wrong in (4, 4 * protocol.sent_in(0).size):
        with pytest.raises(HpcflError, match=f"{wrong} bytes are neither the model nor what"):
            protocol.device(0, 0, bytes).receive_model(np.zeros(wrong, np.uint8))
    assert models.received is None
