"""Protocols are found by name or class."""

from __future__ import annotations

import pytest
from protocol_rounds import SECURE

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.loopback import Loopback
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.observer import Results
from hpcfl.rounds.timed import Played


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_built_in_protocols_run_validated_rounds_in_an_experiment(name):
    kind, rounds = find(name), Results[Played]()
    assert name == kind.name
    assert find(PROTOCOLS[name].home) is kind
    dropout = 0.3 if kind.tolerates_dropouts else 0.0
    options = BenchOptions(name, dim=30, rounds=2, warmup=0, alpha=0.5, dropout=dropout)
    Experiment.prepare(options, devices=10).run(Loopback(10, kind.default_helpers), rounds)

    assert [True, True] == [record.validated for record in rounds.records]
    assert [10 - int(10 * dropout)] * 2 == [one.survived.sum() for one in rounds.records]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        find("nothing-like-it")
    sentence = (
        "there is no protocol 'nothing-like-it'; choose one of fedavg, secagg, secagg-graph, "
        "sparse, cohort, common, lightsecagg, committee, assisted, ckks, prf, or give MODULE:CLASS"
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
