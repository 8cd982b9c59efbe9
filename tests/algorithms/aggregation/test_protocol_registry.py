"""Protocols are found by name or class."""

from __future__ import annotations

import pytest
from protocol_rounds import SECURE

from hpcfl.algorithms.aggregation import find
from hpcfl.algorithms.parameters import Parameters
from hpcfl.errors import UsageError


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
