"""The protocol without dropouts on the command line: its default rate is 0."""

import pytest

from hpcfl.benchmark import experiment
from hpcfl.training import defaults


@pytest.mark.parametrize(
    ("protocol", "given", "preset", "dropout"),
    [
        ("prf", {}, None, 0.0),
        ("hpcfl.algorithms.aggregation.prf:Prf", {}, None, 0.0),
        # What is typed stays, to be refused, the default's value too.
        ("prf", {"dropout": "0.1"}, None, 0.1),
        ("prf", {"dropout": "0.3"}, None, 0.3),
        ("fedavg", {}, None, 0.3),
        ("secagg", {}, None, 0.3),
        # A preset's rate is a default.
        ("fedavg", {}, "sparse-secagg-mnist", 0.3),
        ("prf", {}, "sparse-secagg-mnist", 0.0),
    ],
)
def test_a_protocol_without_dropouts_has_the_default_rate_0(protocol, given, preset, dropout):
    trained = {"algorithm": "fedavg", "aggregate": protocol, **given}

    assert defaults.asked(trained, preset).dropout == dropout
    if preset is None:
        assert experiment.resolved({"protocol": protocol, **given}).dropout == dropout
