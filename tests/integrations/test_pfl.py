"""The callback adds what a secure round of as many devices would cost to pfl's metrics."""

import pytest
from calibrations import flat

pytest.importorskip("pfl", reason="needs hpcfl[pfl]")

from pfl.common_types import Population
from pfl.metrics import MetricName, Metrics

import hpcfl
from hpcfl.integrations.pfl import SecureRoundCost

pytestmark = pytest.mark.full


def test_the_costs_are_those_of_the_prediction_for_as_many_devices(tmp_path):
    path = tmp_path / "calibration.json"
    flat(names=("secagg",)).save(path)
    callback = SecureRoundCost("secagg", 1000, calibration=path, uplink_mbps=10)
    for devices in (10, 20):
        counted = Metrics([(MetricName("number of devices", Population.TRAIN), float(devices))])
        stop, found = callback.after_central_iteration(counted, None, central_iteration=0)
        (costs,) = hpcfl.predict(
            "secagg", devices=devices, dim=1000, calibration=path, uplink_mbps=10
        )
        assert not stop
        assert found["secagg | bytes up of a device"] == costs.bytes_up
        assert found["secagg | modelled seconds of a round"] == costs.modelled_seconds
    only_evaluated = callback.after_central_iteration(Metrics(), None, central_iteration=1)
    assert len(only_evaluated[1]) == 0
