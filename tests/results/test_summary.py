import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_files import simple_record

from hpcfl.errors import UsageError
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import load
from hpcfl.results.summary import beside, summarise

# 1 byte takes 1 us up and 0.5 us down.
LINK = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=1)


def summary_of(path):
    return summarise(load(path), LINK)


def traffic(phase):
    return phase["bytes_up_mean"], phase["bytes_down_mean"]


def test_one_round_summed_up_by_hand(make_run):
    summary = summary_of(make_run("run.h5", [simple_record()]))
    keys, masked, unmask, total = summary.phases

    names = ["share_keys", "masked_input", "unmask", "total"]
    assert [phase["phase"] for phase in summary.phases] == names
    # All four devices send keys; the one that drops out does not lower the mean after that.
    assert [traffic(phase) for phase in (keys, masked, unmask)] == [(15, 25), (200, 0), (0, 5)]
    for name, expected in (
        # The slowest device, the slowest of devices and server, the server.
        ("device_cpu_seconds_median", [0.004, 0.005, 0.001]),
        ("wall_seconds_median", [0.011, 0.009, 0.004]),
        ("server_cpu_seconds_median", [0.010, 0.020, 0.030]),
        # keys: device 3, 4 ms + 30 us + 20 us + 2 * 1 ms, and the server's 10 ms.
        # masked: device 0, 5 ms + 100 us + 1 ms, 20 ms. unmask: 1 ms + 2.5 us + 1 ms, 30 ms.
        ("modelled_seconds", [0.01605, 0.0261, 0.0320025]),
    ):
        found = [phase[name] for phase in (keys, masked, unmask)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    # The survivors send 110, 210 and 310 bytes and receive 25 each.
    assert traffic(total) == (210, 25)
    for name, expected in (
        # CPU of the devices: 7, 4, 5 and 4 ms, so 7, not the 4 + 5 + 1 of the phases' slowest.
        ("device_cpu_seconds_median", 0.007),
        # Wall: 12, 13, 14, 5 and the server's 16 ms.
        ("wall_seconds_median", 0.016),
        ("server_cpu_seconds_median", 0.060),
        ("modelled_round_seconds_max", 0.01605 + 0.0261 + 0.0320025),
        ("all_cpu_seconds_median", 0.080),
        ("round_seconds_p95", 0.1),
    ):
        assert summary[name] == pytest.approx(expected), name


@pytest.mark.parametrize("wrong", [False, True])
def test_rounds_of_warm_up_and_with_a_wrong_aggregate_change_no_figure(make_run, wrong):
    rounds = [simple_record(1), simple_record(2)]
    odd = simple_record(10**6, warmup=not wrong, validated=not wrong)
    odd.survived[:] = True
    plain = summary_of(make_run("plain.h5", rounds)).as_dict()
    more = summary_of(make_run("more.h5", [odd, *rounds])).as_dict()
    counts = {"rounds_warmup": 1 - wrong, "rounds_total": 3, "rounds_validated": 3 - wrong}
    same = plain.keys() - counts - {"path", "file", "files", "validated"}
    same -= {"first_round_seconds", "warnings"}

    assert {name: more[name] for name in same} == {name: plain[name] for name in same}
    assert {name: more[name] for name in counts} == counts
    assert more["validated"] == (not wrong)


@pytest.mark.parametrize("records", [[], [simple_record(warmup=True)]], ids=["none", "warm-up"])
def test_a_run_without_measured_rounds_has_no_figures(make_run, records):
    summary = summary_of(make_run("run.h5", records, rounds=3, status="failed"))

    assert summary["rounds_measured"] == 0
    assert summary["survivors_mean"] is None
    assert summary["bytes_up_mean"] is None
    assert math.isnan(summary["round_seconds_median"])
    assert math.isnan(summary.phases[0]["modelled_seconds"])
    given = summary.as_dict()
    assert given["round_seconds_p95"] is None
    assert json.loads(json.dumps(given, allow_nan=False)) == given


@pytest.fixture
def three(make_run):
    return [
        summary_of(make_run("first.h5", [simple_record()], protocol="sparse")),
        summary_of(make_run("second.h5", [simple_record(4)], protocol="secagg")),
        summary_of(make_run("third.h5", [simple_record(8)], protocol="secagg")),
    ]


def bases(summaries, name=None):
    """Return the file of each run's baseline without the ending."""
    return [row["baseline"] and Path(row["baseline"]).stem for row in beside(summaries, name)]


def test_the_baseline_goes_by_its_file_or_by_its_protocol(three):
    assert bases(three) == bases(three, "secagg") == ["second"] * 3
    assert bases([three[0]]) == [None]  # nothing to compare it with
    assert bases(three, "third.h5") == bases(three, "third") == ["third"] * 3
    assert bases(three, "sparse") == ["first"] * 3
    with pytest.raises(UsageError, match=r"choose one of sparse, secagg, first\.h5"):
        beside(three, "fedavg")


def test_a_failed_run_is_no_baseline_unless_there_is_no_other(three):
    failed = [replace(one, figures={**one.figures, "status": "failed"}) for one in three]
    assert bases([failed[1], three[0]]) == ["first"] * 2
    assert bases([failed[0], failed[1]]) == ["second"] * 2


@pytest.mark.parametrize("other", [{"dim": 20}, {"dropout": 0.0}])
def test_runs_are_compared_with_one_of_the_same_size_and_dropout(make_run, other):
    made = [
        summary_of(make_run(f"{number}.h5", [simple_record()], protocol=protocol, **options))
        for number, (protocol, options) in enumerate(
            [("sparse", {}), ("secagg", {}), ("sparse", other), ("secagg", other)]
        )
    ]

    assert bases(made) == bases(made, "secagg") == ["1", "1", "3", "3"]
    # A file is the baseline of those of its own size.
    assert bases(made, "0") == ["0", "0", None, None]
    assert bases(made[:3], "secagg") == ["1", "1", None]


def test_ratios_are_baseline_over_run(make_run, three):
    silent = simple_record()
    silent.messages_up[:] = 0
    silent.bytes_up[:] = 0
    others = [
        summary_of(make_run("empty.h5", rounds=2)),
        summary_of(make_run("silent.h5", [silent])),
    ]
    sparse, _, _, empty, still = beside([*three, *others], "second")

    # The 4 ms of latency do not grow with the round.
    expected = (4, 4, (4 * 70.1525 + 4) / 74.1525)
    names = ("bytes_up_ratio", "device_cpu_ratio", "modelled_round_ratio")
    assert [sparse[name] for name in names] == pytest.approx(expected)
    assert beside(three, "first")[1]["bytes_up_ratio"] == 0.25
    assert empty["bytes_up_ratio"] is still["bytes_up_ratio"] is None
    assert beside([empty, sparse], "empty")[1]["modelled_round_ratio"] is None
