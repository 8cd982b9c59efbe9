"""Helpers, coded masks and committees: exact sums for 3 to 40 devices, whoever is gone."""

import numpy as np
import pytest
from protocol_rounds import enrolled, make, play

from hpcfl.algorithms.aggregation import find


def protocol_of(name, devices):
    """Return a protocol in which a tenth of the devices may drop out; they enrol if they must."""
    if name != "assisted":
        return make(name, devices, 30, dropout=0.1)
    protocol = make(name, devices, 30, dropout=0.1, helpers=2)
    protocol.join(enrolled(name, devices, security="passive"), range(devices), devices)
    return protocol


def most_gone(protocol):
    """Return how many devices may be missing, members of a committee or not, without harm."""
    devices, code = protocol.parameters.devices, getattr(protocol, "code", None)
    most = devices - protocol.parameters.threshold
    return most if code is None else min(most, code.devices - code.needed)


@pytest.mark.full
@pytest.mark.parametrize("name", ["assisted", "lightsecagg", "committee"])
@pytest.mark.parametrize("devices", range(3, 41))
def test_sums_are_exact_with_as_many_gone_as_may_be_before_each_phase(name, devices):
    generator = np.random.default_rng(devices)
    for phase in find(name).phases():
        # Devices drop out of a round, not of the enrolment before it.
        if phase == "result" or (name == "assisted" and phase == "advertise_keys"):
            continue
        protocol = protocol_of(name, devices)
        gone = generator.choice(devices, most_gone(protocol), replace=False).tolist()
        index = int(generator.integers(2**31))

        play(protocol, dropouts=dict.fromkeys(gone, phase), index=index).goes_on()
