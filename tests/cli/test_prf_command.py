"""The protocol without dropouts on the command line: its default rate is 0."""

import pytest

from hpcfl.benchmark import experiment
from hpcfl.training import defaults


def bench(protocol, **given):
    return experiment.asked({"protocol": protocol, **given}).dropout


def train(aggregate, preset=None, **given):
    return defaults.asked({"algorithm": "fedavg", "aggregate": aggregate, **given}, preset).dropout


@pytest.mark.parametrize("name", ["prf", "hpcfl.algorithms.aggregation.prf:Prf"])
def test_a_protocol_without_dropouts_has_the_default_rate_0(name):
    assert 0.0 == bench(name) == train(name)


def test_a_rate_that_is_typed_is_kept_to_be_refused():
    assert 0.1 == bench("prf", dropout="0.1") == train("prf", dropout="0.1")
    # The default's value, but typed.
    assert 0.3 == bench("prf", dropout="0.3")


def test_other_protocols_keep_their_default():
    for name in ("fedavg", "secagg", "no-such-protocol", "no.such:Module"):
        assert 0.3 == bench(name) == train(name)


def test_a_presets_rate_is_a_default():
    assert 0.3 == train("fedavg", "sparse-secagg-mnist")
    assert 0.0 == train("prf", "sparse-secagg-mnist")
