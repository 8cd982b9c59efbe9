"""One hostile device ruins a training whose sums it can boost; pine leaves it out."""

import json

import pytest
from commandline import hpcfl, told

from hpcfl import bench
from hpcfl.audit.boost import Boosted, boost
from hpcfl.options.boost import BoostOptions
from hpcfl.results.reader import load


@pytest.fixture(autouse=True)
def usual_times(monkeypatch):
    monkeypatch.setattr(Boosted, "times", 10.0)


@pytest.mark.parametrize("aggregate", ["secagg", "assisted", "sparse"])
def test_a_long_vector_ruins_the_mean_where_nothing_limits_it(aggregate):
    found = boost(BoostOptions(aggregate=aggregate, devices=6, rounds=2, epochs=5))
    assert found.refused == {}
    assert max(found.attacked) < found.honest[-1] / 2


def test_pine_refuses_the_device_in_every_round_and_the_others_train_on():
    found = boost(BoostOptions(aggregate="pine", devices=6, rounds=3, epochs=5))
    ((reason, rounds),) = found.refused.items()
    assert "device 0 is left out, not short" in reason
    assert rounds == [0, 1, 2]
    assert found.attacked[-1] > 0.8 * found.honest[-1]
    assert f"refused in 3 rounds: {reason}" in found.render()


def test_pine_lets_a_short_vector_pass():
    found = boost(BoostOptions(aggregate="pine", devices=6, rounds=1, epochs=5, times=0.98))
    assert found.refused == {}
    assert found.attacked < found.honest


def test_the_command_prints_json_and_keeps_the_results(tmp_path):
    words = ["--aggregate", "pine", "--devices", "4", "--rounds", "1", "--json", "--output"]
    found = json.loads(told("attack", "boost", *words, tmp_path))
    assert found["asked"] == {"aggregate": "pine", "times": 10.0}
    assert [len(found[name]) for name in ("honest", "attacked", "refused")] == [1, 1, 1]
    runs = [load(path) for path in sorted(tmp_path.glob("*.h5"))]
    assert {run.protocol for run in runs} == {"pine", "pine-boosted-10"}
    assert all(run.validated.all() for run in runs)


def test_other_commands_can_be_attacked(tmp_path):
    """Sums are still validated: they contain what the device has sent."""
    about = {"devices": 4, "dim": 50, "rounds": 1, "warmup": 0, "output": tmp_path}
    run = bench("hpcfl.audit.boost:pine", **about, dropout=0)
    assert run.survived.tolist() == [[False, True, True, True]]
    run = bench("hpcfl.audit.boost:secagg", **about, dropout=0)
    assert run.survived.all()
    assert run.validated.all()


@pytest.mark.parametrize("name", ["fedavg", "own_protocol:SignSum"])
def test_only_quantised_protocols_of_hpcfl_can_be_attacked(name, monkeypatch):
    monkeypatch.syspath_prepend("examples")
    done = hpcfl("attack", "boost", "--aggregate", name)
    assert done.returncode == 2
    assert f"{name} is no protocol of hpcfl with quantised vectors" in done.stderr
