"""What else the machine did during a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpcfl.results.schema import stored
from hpcfl.system import cgroups, disturbances
from hpcfl.system.disturbances import AFTER, BEFORE, COUNTERS, after, before, counters, warnings

QUIET: dict[str, Any] = (
    dict.fromkeys((*BEFORE, *AFTER), 0.0)
    | {"after_clock_seconds": 10.0, "cores_usable": 4, "cores_logical": 4}
    | {"host_ranks": [4], "before_load_1min": 3.9}
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return the root of a machine that keeps all counters."""
    monkeypatch.setattr(disturbances, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(disturbances, "_CPUS", tmp_path / "cpu")
    monkeypatch.setattr(cgroups, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(disturbances, "load_1min", lambda: 1.5)
    monkeypatch.setattr(disturbances.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_CLK_TCK": 100}.get)
    files = {
        "proc/vmstat": "pgpgin 5\npswpin 3\npswpout 7\n",
        "proc/stat": "cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n",
        "proc/self/cgroup": "0::/job\n",
        "cgroup/job/cpu.stat": "usage_usec 9\nnr_throttled 4\nthrottled_usec 2500000\n",
        "cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
        "cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_all_counters_are_read_in_their_units(machine):
    found = counters()

    assert found.pop("clock_seconds") > 0
    assert found == {
        "load_1min": 1.5,
        "swapped_in_bytes": 3 * 4096,
        "swapped_out_bytes": 7 * 4096,
        "quota_throttled_seconds": 2.5,
        "thermal_throttlings": 7,
        "stolen_seconds": 2.5,
    }


def test_the_older_control_groups_count_nanoseconds(machine):
    (machine / "proc/self/cgroup").write_text("5:memory:/x\n4:cpu,cpuacct:/host/path\n0::/\n")
    folder = machine / "cgroup/cpu,cpuacct"
    folder.mkdir()
    (folder / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\nthrottled_time 1500000000\n")

    assert counters()["quota_throttled_seconds"] == 1.5


def test_a_machine_that_tells_nothing_gives_nan(monkeypatch, tmp_path):
    for module, name in ((disturbances, "_PROC"), (disturbances, "_CPUS"), (cgroups, "_PROC")):
        monkeypatch.setattr(module, name, tmp_path / "none")
    monkeypatch.setattr(disturbances, "load_1min", lambda: None)
    found = counters()

    assert [*found] == [*COUNTERS]
    assert all(math.isnan(value) for name, value in found.items() if name != "clock_seconds")
    assert warnings(stored(before([found]) | after([found]))) == []


def test_a_quiet_run_is_not_warned_of():
    assert warnings(QUIET) == []
    assert warnings({}) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host_ranks": [5]}, "5 ranks on 4 cores: measured seconds show the scheduler"),
        # Of other hosts a file of an earlier version says only how many ranks they had.
        ({"host_ranks": [2, 101]}, "101 ranks on 4 cores"),
        # The run's own ranks are not other programs.
        ({"host_ranks": [101], "before_load_1min": 60.0}, "101 ranks on 4 cores"),
        ({"before_load_1min": 4.6}, "a load of 4.6 on 4 cores before the run"),
        ({"after_swapped_in_bytes": 3e6}, "3 MiB were swapped in and 0 MiB out"),
        ({"after_swapped_out_bytes": 2e6}, "0 MiB were swapped in and 2 MiB out"),
        ({"after_quota_throttled_seconds": 0.2}, "held threads back for 0.2 s of a run of 10.0 s"),
        ({"after_thermal_throttlings": 2.0}, "cores slowed down 2 times because of heat"),
        ({"after_stolen_seconds": 0.5}, "kept 0.5 CPU seconds from this machine's 4 cores"),
    ],
)
def test_each_disturbance_has_a_sentence(changes, sentence):
    (found,) = warnings(QUIET | changes)

    assert sentence in found


@pytest.mark.parametrize(
    "changes",
    [
        {"after_swapped_in_bytes": 1e6},
        {"after_quota_throttled_seconds": 0.09},
        {"after_stolen_seconds": 0.39},
        # What had happened before the run.
        {"before_thermal_throttlings": 5.0, "after_thermal_throttlings": 5.0},
        {"before_swapped_in_bytes": 1e9, "after_swapped_in_bytes": 1e9},
        # Killed before its end.
        dict.fromkeys(AFTER, math.nan),
    ],
)
def test_little_or_earlier_ones_have_none(changes):
    assert warnings(QUIET | changes) == []


def of_hosts(*changes):
    """Return the facts of as many hosts, each quiet but for its changes."""
    each = [QUIET | change for change in changes]
    names = (*BEFORE, *AFTER)
    differing = {"cores_usable": [facts["cores_usable"] for facts in each]}
    return (
        {name: [facts[name] for facts in each] for name in names}
        | {"cores_usable": each[0]["cores_usable"], "cores_logical": 4}
        | {"host_ranks": [facts["host_ranks"][0] for facts in each]}
        | {"hosts": [f"node{number}" for number in range(len(each))], "host_facts": differing}
    )


def test_a_sentence_names_the_host_that_was_disturbed():
    swapping, hot = {"after_swapped_in_bytes": 3e6}, {"after_thermal_throttlings": 2.0}
    found = warnings(of_hosts({}, swapping, swapping | hot))

    assert [sentence.partition("(")[2] for sentence in found] == ["on node1, node2)", "on node2)"]
    assert "3 MiB were swapped in" in found[0]
    assert "cores slowed down 2 times" in found[1]
    assert warnings(of_hosts({}, {})) == []


def test_every_host_has_its_own_cores_and_ranks():
    (found,) = warnings(of_hosts({}, {"cores_usable": 2}, {"host_ranks": [2]}))

    assert found.startswith("4 ranks on 2 cores")
    assert found.endswith("(on node1)")
    assert warnings(of_hosts({}, {"cores_usable": 8, "before_load_1min": 7.0})) == []


def test_many_hosts_are_counted():
    (found,) = warnings(of_hosts(*[{"after_thermal_throttlings": 2.0}] * 9))

    assert found.endswith("(on node0, node1, node2, node3 and 5 other hosts)")


def test_the_hosts_of_a_lab_are_one_machine():
    facts = QUIET | {"transport": "netlab", "host_ranks": [1, 1], "hosts": ["server", "device0"]}
    counters = {name: [facts[name]] for name in (*BEFORE, *AFTER)}
    (found,) = warnings(facts | counters | {"after_thermal_throttlings": [2.0]})

    assert found.endswith("because of heat during the run")


def test_nothing_is_said_of_a_host_whose_counters_are_lost():
    assert warnings(of_hosts({}, dict.fromkeys((*BEFORE, *AFTER), math.nan))) == []
