import json
import math
from dataclasses import replace

import numpy as np
import pytest
from run_files import random_record, simple_record

from hpcfl.errors import UsageError
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import load
from hpcfl.results.statistics import Percentiles
from hpcfl.results.summary import baselines, ratios, summarise

# 1 byte takes 1 us up and 0.5 us down.
LINK = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=1)


def summary_of(path):
    return summarise(load(path), LINK)


def approximately(median, p95, largest):
    return Percentiles(*(pytest.approx(x, rel=1e-12) for x in (median, p95, largest)))


def traffic(phase):
    names = ("bytes_up_mean", "bytes_up_max", "bytes_down_mean", "bytes_down_max")
    return [getattr(phase, name) for name in (*names, "messages_up_mean")]


def test_one_round_summed_up_by_hand(make_run):
    summary = summary_of(make_run("run.h5", [simple_record()]))
    keys, masked, unmask = summary.phases

    assert (keys.name, masked.name, unmask.name) == ("share_keys", "masked_input", "unmask")
    # All four devices send keys; the last one sends three messages.
    assert traffic(keys) == [15, 30, 25, 40, 1.5]
    # The device that dropped out does not lower the mean.
    assert traffic(masked) == [200, 300, 0, 0, 1]
    assert traffic(unmask) == [0, 0, 5, 5, 0]
    # The slowest device, the slowest of devices and server, the server.
    assert [p.device_cpu_seconds.median for p in summary.phases] == [0.004, 0.005, 0.001]
    assert [p.wall_seconds.median for p in summary.phases] == [0.011, 0.009, 0.004]
    assert [p.server_cpu_seconds.median for p in summary.phases] == [0.010, 0.020, 0.030]
    assert [p.server_wall_seconds.median for p in summary.phases] == [0.011, 0.001, 0.004]
    # keys: device 3, 4 ms + 30 us + 20 us + 2 * 1 ms, and the server's 10 ms.
    # masked: device 0, 5 ms + 100 us + 1 ms, 20 ms. unmask: 1 ms + 2.5 us + 1 ms, 30 ms.
    modelled = [0.01605, 0.0261, 0.0320025]
    np.testing.assert_allclose([p.modelled_seconds for p in summary.phases], modelled, rtol=1e-12)

    total = summary.total
    # The survivors send 110, 210 and 310 bytes and receive 25 each; the one that dropped out does
    # not lower their mean.
    assert traffic(total) == [210, 310, 25, 40, 2]
    # CPU of the devices: 7, 4, 5 and 4 ms, so 7, not the 4 + 5 + 1 of the phases' slowest.
    assert total.device_cpu_seconds.median == pytest.approx(0.007)
    # Wall: 12, 13, 14, 5 and the server's 16 ms.
    assert total.wall_seconds.median == pytest.approx(0.016)
    assert total.server_wall_seconds.median == pytest.approx(0.016)
    assert total.server_cpu_seconds.median == pytest.approx(0.060)
    assert total.modelled_seconds == pytest.approx(sum(modelled))
    assert summary.all_cpu_seconds.median == pytest.approx(0.080)
    assert summary.round_seconds == Percentiles(0.1, 0.1, 0.1)
    assert summary.modelled_round_seconds.max == pytest.approx(sum(modelled))


def test_percentiles_are_over_rounds(make_run):
    summary = summary_of(make_run("run.h5", [simple_record(k) for k in (5, 1, 3)]))

    # 1, 3 and 5 times the round above: median 3, 95th percentile 3 + 0.9 * 2.
    assert summary.total.device_cpu_seconds == approximately(0.021, 0.0336, 0.035)
    assert summary.phases[0].wall_seconds == approximately(0.033, 0.0528, 0.055)
    assert summary.round_seconds == approximately(0.3, 0.48, 0.5)
    assert (summary.total.bytes_up_mean, summary.total.bytes_up_max) == (630, 1550)
    assert summary.total.bytes_up_mean == 630


def test_warm_up_rounds_change_no_figure(make_run):
    rounds = [simple_record(1), simple_record(2)]
    cold = simple_record(10**6, warmup=True)
    cold.survived[:] = True
    plain = summary_of(make_run("plain.h5", rounds)).as_dict()
    warmed = summary_of(make_run("warmed.h5", [cold, *rounds])).as_dict()
    counts = {"rounds_warmup": 1, "rounds_total": 3, "rounds_validated": 3}
    same = plain.keys() - counts - {"path", "files", "first_round_seconds"}

    assert {name: warmed[name] for name in same} == {name: plain[name] for name in same}
    assert {name: warmed[name] for name in counts} == counts


def test_survivors_and_validation_are_counted(make_run):
    records = [simple_record(), simple_record(), simple_record(warmup=True)]
    records[0].survived[:] = [True, False, False, False]
    summary = summary_of(make_run("run.h5", records))

    assert (summary.survivors_min, summary.survivors_mean, summary.survivors_max) == (1, 2.0, 3)
    assert (summary.rounds_validated, summary.rounds_total) == (3, 3)


def test_a_round_with_a_wrong_aggregate_changes_no_figure(make_run):
    wrong = simple_record(1000, validated=False)
    summary = summary_of(make_run("run.h5", [simple_record(), wrong]))

    assert summary.total == summary_of(make_run("right.h5", [simple_record()])).total
    assert (summary.rounds_measured, summary.rounds_validated, summary.rounds_total) == (1, 1, 2)


def test_what_the_run_was_is_copied(make_run):
    path = make_run("run.h5", [simple_record()], protocol="cohort", status="failed")
    summary = summary_of(path)

    assert (summary.protocol, summary.devices, summary.dim) == ("cohort", 4, 10)
    assert (summary.alpha, summary.theta) == (0.1, 0.25)
    assert (summary.status, summary.path, summary.name) == ("failed", str(path), "run.h5")
    assert (summary.transport, summary.mpi_library) == ("loopback", None)
    assert summary.link == LINK
    assert summary_of(make_run("other.h5", [simple_record()], alpha=None)).alpha is None


@pytest.mark.parametrize("records", [[], [simple_record(warmup=True)]], ids=["none", "warm-up"])
def test_a_run_without_measured_rounds_has_no_figures(make_run, records):
    summary = summary_of(make_run("run.h5", records, rounds=3, status="failed"))

    assert summary.rounds_measured == 0
    assert summary.survivors_mean is None
    assert summary.total.bytes_up_mean is None
    assert summary.total.bytes_up_max is None
    assert math.isnan(summary.round_seconds.median)
    assert math.isnan(summary.phases[0].modelled_seconds)
    assert summary.as_dict()["round_seconds"] == {"median": None, "p95": None, "max": None}


def test_a_summary_is_plain_json(make_run):
    for records in ([], [random_record(1)]):
        given = summary_of(make_run(f"{len(records)}.h5", records)).as_dict()
        text = json.dumps(given, allow_nan=False)
        assert json.loads(text) == given
    assert given["phases"][0]["name"] == "share_keys"
    link = {"uplink_mbps": 8, "downlink_mbps": 16, "helper_mbps": 1000, "latency_ms": 1}
    assert given["link"] == link


@pytest.fixture
def three(make_run):
    return [
        summary_of(make_run("first.h5", [simple_record()], protocol="sparse")),
        summary_of(make_run("second.h5", [simple_record(4)], protocol="secagg")),
        summary_of(make_run("third.h5", [simple_record(8)], protocol="secagg")),
    ]


def test_the_baseline_goes_by_its_file_or_by_its_protocol_if_that_is_unique(three):
    assert baselines(three) == [three[1]] * 3
    assert baselines([three[0]]) == [None]  # nothing to compare it with
    for name in ("third.h5", "third"):
        assert baselines(three, name) == [three[2]] * 3
    assert baselines(three, "sparse") == [three[0]] * 3
    with pytest.raises(UsageError, match=r"any of .*second\.h5, .*third\.h5"):
        baselines(three, "secagg")
    with pytest.raises(UsageError, match=r"choose one of sparse, secagg, first\.h5"):
        baselines(three, "fedavg")


def test_a_failed_run_is_no_baseline_unless_there_is_no_other(three):
    failed = [replace(one, status="failed") for one in three]
    assert baselines([failed[1], three[0]]) == [three[0]] * 2
    assert baselines([failed[0], failed[1]]) == [failed[1]] * 2


@pytest.mark.parametrize(
    ("one", "other"),
    [({"dim": 10}, {"dim": 20}), ({"dropout": 0.25}, {"dropout": 0.0})],
    ids=["parameters", "dropout"],
)
def test_runs_are_compared_with_one_of_the_same_size_and_dropout(make_run, one, other):
    made = [
        summary_of(make_run(f"{number}.h5", [simple_record()], protocol=protocol, **options))
        for number, (protocol, options) in enumerate(
            [("sparse", one), ("secagg", one), ("sparse", other), ("secagg", other)]
        )
    ]

    for name in (None, "secagg"):
        assert baselines(made, name) == [made[1], made[1], made[3], made[3]]
    # A file is the baseline of those of its own size.
    assert baselines(made, "0") == [made[0], made[0], None, None]
    assert baselines(made[:3], "secagg") == [made[1], made[1], None]


def test_runs_for_different_links_are_no_baseline_of_each_other(make_run):
    run = load(make_run("a.h5", [simple_record()]))
    near, far = (summarise(run, run.link(latency_ms=latency)) for latency in (1, 20))

    assert baselines([near, far]) == [None, None]
    assert baselines([near, far, near]) == [near, None, near]


def test_ratios_are_baseline_over_run(three):
    sparse, secagg, _ = three
    found = ratios(secagg, sparse)

    assert found["bytes_up"] == 4
    assert found["device_cpu"] == pytest.approx(4)
    # The 4 ms of latency do not grow with the round.
    assert found["modelled_round"] == pytest.approx((4 * 70.1525 + 4) / 74.1525)
    assert ratios(sparse, secagg)["bytes_up"] == 0.25


def test_a_ratio_to_nothing_is_not_given(make_run, three):
    empty = summary_of(make_run("empty.h5", rounds=2))
    silent = simple_record()
    silent.messages_up[:] = 0
    silent.bytes_up[:] = 0

    assert ratios(three[0], empty)["bytes_up"] is None
    assert ratios(empty, three[0])["modelled_round"] is None
    assert ratios(three[0], summary_of(make_run("silent.h5", [silent])))["bytes_up"] is None
