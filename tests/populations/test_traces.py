"""FedScale's and FLASH's files of clients become tables; the clients here are made up."""

import json
import pickle

import numpy as np
import pytest
from commandline import told

from hpcfl.errors import HpcflError, UsageError
from hpcfl.populations import population, traces

CAPACITIES = {
    1: {"computation": 40.0, "communication": 8_000.0},
    2: {"computation": 20.0, "communication": 500.0},
    3: {"computation": 100.0, "communication": 20_000.0},
}
CLIENTS = {
    "1": {"duration": 50, "active": [0, 70, 60], "inactive": [30, 80, 75], "finish_time": 100},
    "2": {"duration": 0, "active": [], "inactive": [], "finish_time": 100},
    "3": {"duration": 20, "active": [10], "inactive": [30], "finish_time": 100},
    "4": {"duration": 60, "active": [1e-5, 40], "inactive": [1], "finish_time": 100},
}


@pytest.fixture
def capacities(tmp_path):
    path = tmp_path / "client_device_capacity"
    path.write_bytes(pickle.dumps(CAPACITIES))
    return path


@pytest.mark.parametrize("write", [json.dumps, pickle.dumps], ids=["FLASH", "FedScale"])
def test_clients_become_devices(tmp_path, capacities, write):
    availability = tmp_path / "clients"
    text = write(CLIENTS)
    availability.write_bytes(text.encode() if isinstance(text, str) else text)
    population.save(tmp_path / "table.csv", traces.table(capacities, availability))
    known = population.load(str(tmp_path / "table.csv"), 3, seed=0)

    np.testing.assert_allclose(known.uplink_mbps, [8, 0.5, 20])
    np.testing.assert_allclose(known.downlink_mbps, known.uplink_mbps)
    np.testing.assert_allclose(known.compute, [2, 1, 5])
    # The second client is never there, so the third is the second device, and the fourth the third.
    assert [known.there_until(device, 65.0) for device in range(3)] == [80, -np.inf, 100]
    assert [known.there_until(device, 115.0) for device in range(3)] == [130, 130, -np.inf]


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Runs:
        def __reduce__(self):
            return print, ("run",)

    path = tmp_path / "clients"
    path.write_bytes(pickle.dumps({1: Runs()}))
    with pytest.raises(HpcflError, match=r"it holds a builtins\.print"):
        traces.table(path)


def test_clients_of_another_format_are_refused(capacities):
    with pytest.raises(UsageError, match="a client has no active; each needs active, inactive"):
        traces.table(capacities, capacities)
    capacities.write_text(json.dumps({1: {"computation": "fast", "communication": 3}}))
    with pytest.raises(UsageError, match="computation, communication must be finite numbers"):
        traces.table(capacities)


def test_the_command_converts_draws_and_prints(tmp_path, capacities):
    table, figure = tmp_path / "phones.csv", tmp_path / "phones.svg"
    clients = tmp_path / "clients.json"
    clients.write_text(json.dumps(CLIENTS))
    shown = told("data", "population", capacities, clients, "--output", table)

    assert "Quantiles over 3 devices" in shown
    assert "on_intervals" in table.read_text()
    again = tmp_path / "again.csv"
    told("data", "population", table, "--output", again)
    assert again.read_text() == table.read_text()
    assert shown == told("data", "population", table, "--output", figure)
    assert figure.stat().st_size > 5_000
