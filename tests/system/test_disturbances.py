"""What else the machine did during a run."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hpcfl.results.schema import stored
from hpcfl.system import machine
from hpcfl.system.disturbances import AFTER, BEFORE, COUNTERS, counters, recorded, warnings

QUIET: dict[str, Any] = (
    dict.fromkeys((*BEFORE, *AFTER), 0.0)
    | {"after_clock_seconds": 10.0, "cores_usable": 4, "cores_logical": 4}
    | {"host_ranks": [4], "before_load_1min": 3.9}
)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("0::/job\n", "cgroup/job/cpu.stat: usage_usec 9\nthrottled_usec 2500000\n"),
        # The older control groups count nanoseconds.
        ("4:cpu,cpuacct:/host\n", "cgroup/cpu,cpuacct/cpu.stat: throttled_time 2500000000\n"),
    ],
)
def test_all_counters_are_read_in_their_units(tmp_path, monkeypatch, group, text):
    name, _, content = text.partition(": ")
    texts = {f"cpu/cpu{k}/thermal_throttle/core_throttle_count": f"{3 + k}\n" for k in (0, 1)}
    for path, said in (texts | {name: content}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(said)
    real = machine.read
    monkeypatch.setattr(
        machine, "read", lambda path: group if str(path) == "/proc/self/cgroup" else real(path)
    )
    monkeypatch.setattr(machine, "CPUS", tmp_path / "cpu")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(psutil, "getloadavg", lambda: (1.5, 0, 0))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(sin=3, sout=7))
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1, steal=2.25))
    found = counters()

    assert found.pop("clock_seconds") > 0
    assert [*found.values()] == [1.5, 3, 7, 2.5, 7, 2.25]
    assert [*found] == [*COUNTERS][1:]


def test_what_a_machine_does_not_tell_is_nan_and_no_disturbance(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUS", tmp_path)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1))
    found = counters()

    for name in ("quota_throttled_seconds", "thermal_throttlings", "stolen_seconds"):
        assert math.isnan(found[name])
    assert warnings(stored(recorded(BEFORE, [found]) | recorded(AFTER, [found]))) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host_ranks": [5]}, "5 ranks on 4 cores: measured seconds show the scheduler"),
        # The run's own ranks are not other programs.
        ({"host_ranks": [101], "before_load_1min": 60.0}, "101 ranks on 4 cores"),
        ({"host_ranks": [9], "sooner": "mpirun -n 5"}, "bytes come sooner from mpirun -n 5"),
        ({"sooner": "mpirun -n 5"}, None),
        ({"before_load_1min": 4.6}, "a load of 4.6 on 4 cores before the run"),
        ({"after_swapped_in_bytes": 3e6}, "3 MiB were swapped in and 0 MiB out"),
        ({"after_quota_throttled_seconds": 0.2}, "held threads back for 0.2 s of a run of 10.0 s"),
        ({"after_thermal_throttlings": 2.0}, "cores slowed down 2 times because of heat"),
        ({"after_stolen_seconds": 0.5}, "kept 0.5 CPU seconds from this machine's 4 cores"),
        # Little, or before the run, or of one that was killed before its end.
        ({}, None),
        ({"after_swapped_in_bytes": 1e6}, None),
        ({"after_stolen_seconds": 0.39}, None),
        ({"before_swapped_in_bytes": 1e9, "after_swapped_in_bytes": 1e9}, None),
        (dict.fromkeys(AFTER, math.nan), None),
    ],
)
def test_each_disturbance_has_a_sentence(changes, sentence):
    found = warnings(QUIET | changes)

    assert len(found) == (sentence is not None)
    assert all(sentence in one for one in found)


def of_hosts(*changes):
    """Return the facts of as many hosts, each quiet but for its changes."""
    each = [QUIET | change for change in changes]
    found = {name: [facts[name] for facts in each] for name in (*BEFORE, *AFTER)}
    cores = [facts["cores_usable"] for facts in each]
    found |= {"cores_usable": cores[0], "host_facts": {"cores_usable": cores}, "cores_logical": 4}
    found["host_ranks"] = [facts["host_ranks"][0] for facts in each]
    return found | {"hosts": [f"node{number}" for number in range(len(each))]}


def test_a_sentence_names_the_hosts_that_were_disturbed():
    swapping, hot = {"after_swapped_in_bytes": 3e6}, {"after_thermal_throttlings": 2.0}
    found = warnings(of_hosts({}, swapping, swapping | hot))
    assert [sentence.partition("(")[2] for sentence in found] == ["on node1, node2)", "on node2)"]
    (found,) = warnings(of_hosts(*[hot] * 9))
    assert found.endswith("(on node0, node1, node2, node3 and 5 more)")
    # Every host has its own cores and ranks.
    (found,) = warnings(of_hosts({}, {"cores_usable": 2}, {"host_ranks": [2]}))
    assert found.startswith("4 ranks on 2 cores")
    assert found.endswith("(on node1)")


def test_the_hosts_of_a_lab_are_one_machine():
    facts = QUIET | {"transport": "netlab", "host_ranks": [1, 1], "hosts": ["server", "device0"]}
    counted = {name: [facts[name]] for name in (*BEFORE, *AFTER)}
    (found,) = warnings(facts | counted | {"after_thermal_throttlings": [2.0]})

    assert found.endswith("because of heat during the run")
