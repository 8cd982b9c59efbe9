"""Protocols are found by name, and a new one needs nothing but its class."""

from __future__ import annotations

import numpy as np
import pytest
from protocol_rounds import SECURE

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.aggregation.base import AggregationProtocol, QuantisedProtocol
from hpcfl.algorithms.aggregation.messages import parse_vector
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.comm.phases import Pattern, Step
from hpcfl.crypto.keys import system_secrets
from hpcfl.errors import UsageError, ValidationError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played


class PlainIntegers(QuantisedProtocol):
    """The smallest protocol: quantised vectors, summed in the clear, in one phase."""

    name = "plain-integers"
    steps = (Step("upload", Pattern.GATHER, upload=True), Step("result", Pattern.LOCAL))

    def device(self, id, round_index, secrets):
        return PlainDevice(self, id, round_index)

    def server(self, round_index, model, secrets=system_secrets):
        return PlainServer(self)


class PlainDevice:
    def __init__(self, protocol, id, round_index):
        self.id = id
        self._protocol, self._round = protocol, round_index

    def send_upload(self, vector):
        return self._protocol.quantise(vector, self.id, self._round)

    def contribution(self, vector):
        return slice(None), self._protocol.quantise(vector, self.id, self._round)


class PlainServer:
    def __init__(self, protocol):
        self.survivors: list[int] = []
        self.total = np.zeros(protocol.parameters.dim, np.int64)

    def receive_upload(self, sender, payload):
        self.total += parse_vector(payload, "<i8", self.total.size, "upload", f"device {sender}")
        self.survivors.append(sender)

    def finish_result(self):
        pass


class Forgetful(PlainIntegers):
    """A protocol whose server loses the first vector."""

    def server(self, round_index, model, secrets=system_secrets):
        server = PlainServer(self)
        server.total[:] = 1
        return server


def run(name, **options):
    rounds = Results[Played]()
    experiment = Experiment.prepare(
        BenchOptions(name, **{"dim": 30, "rounds": 2, "warmup": 0, **options}), devices=10
    )
    experiment.run(Loopback(10), rounds)
    return rounds.records


def test_a_protocol_of_ones_own_is_measured_and_validated_as_the_built_in_ones():
    for record in run(f"{__name__}:PlainIntegers"):
        assert record.validated
        assert 7 == record.survived.sum()
        assert (16 + 8 * 30) * record.survived.astype(int).tolist()[0] == record.bytes_up[0, 0]
        assert 7 * (16 + 8 * 30) == record.bytes_up.sum()


def test_a_protocol_of_ones_own_that_sums_wrongly_fails_the_run():
    with pytest.raises(ValidationError, match="the aggregate of round 0 is wrong"):
        run(f"{__name__}:Forgetful")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_built_in_protocols_are_found_under_the_name_that_they_have(name):
    kind = find(name)

    assert name == kind.name
    assert issubclass(kind, AggregationProtocol)
    assert find(PROTOCOLS[name].home) is kind


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_built_in_protocols_run_validated_rounds_in_an_experiment(name):
    dropout = 0.3 if find(name).tolerates_dropouts else 0.0
    records = run(name, alpha=0.5, dropout=dropout)

    assert [True, True] == [record.validated for record in records]
    assert [10 - int(10 * dropout)] * 2 == [record.survived.sum() for record in records]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        find("secag")
    sentence = (
        "there is no protocol 'secag'; choose one of fedavg, secagg, secagg-graph, sparse, cohort, "
        "common, prf, or give MODULE:CLASS"
    )
    assert sentence == str(caught.value)
    assert 2 == caught.value.exit_status


@pytest.mark.parametrize(
    "name",
    ["no_such_module:Class", "hpcfl.errors:NoSuchClass", "hpcfl.errors:", ":C", ".relative:Class"],
)
def test_a_class_that_cannot_be_loaded_is_wrong_use(name):
    with pytest.raises(UsageError, match=f"the protocol '{name}' cannot be loaded"):
        find(name)
    # Nor is it a protocol.
    for other in ("os:path", "hpcfl.errors:UsageError", "json:dumps"):
        with pytest.raises(UsageError):
            find(other)


@pytest.mark.parametrize("name", SECURE)
def test_a_protocol_of_pairs_needs_two_devices(name):
    with pytest.raises(UsageError, match=f"{name} needs at least 2 devices, but there are 1"):
        find(name)(Parameters(1, 5))
