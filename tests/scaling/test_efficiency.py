"""Speed-up and efficiency against examples worked out by hand, and what is refused."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scaled_runs import SPREAD, scaled

from hpcfl.errors import UsageError
from hpcfl.options.report import SCALES
from hpcfl.results.scaling import lacking, study, table
from hpcfl.results.statistics import Interval, median_interval


def points(found, line=0):
    return {point.x: point for point in found.lines[line].points}


def test_strong_scaling_is_the_bases_seconds_over_those_of_more_ranks(tmp_path):
    # 2, 3 and 5 ranks are 1, 2 and 4 that hold devices.
    found = study([scaled(tmp_path, n, s) for n, s in ((2, 12.0), (3, 8.0), (5, 4.0))], "ranks")
    at = points(found)

    assert found.mode == "strong"
    assert [*at] == [1, 2, 4]
    assert [p.speed_up for p in at.values()] == pytest.approx([1, 1.5, 3])
    assert [p.efficiency for p in at.values()] == pytest.approx([1, 0.75, 0.75])
    # Nine samples: the ends at 97.5 % are the smallest and the largest, 0.8 and 1.2 times.
    low, high = at[4].efficiency_interval.low, at[4].efficiency_interval.high
    assert median_interval(SPREAD, 0.975) == Interval(0.8, 1.2)
    assert (low, high) == pytest.approx((0.75 * 0.8 / 1.2, 0.75 * 1.2 / 0.8))
    assert not at[1].efficiency_interval.known


def test_ranks_that_took_no_part_are_not_counted(tmp_path):
    settings = ((2, 12.0), (5, 4.0), (17, 2.0))
    found = study([scaled(tmp_path, n, s, devices=8) for n, s in settings], "ranks")

    # Sixteen ranks for eight devices.
    assert [*points(found)] == [1, 4, 8]
    assert points(found)[8].efficiency == pytest.approx(12 / 2 / 8)


def test_weak_scaling_counts_the_work_that_has_grown(tmp_path):
    settings = ((2, 8, 2.0), (3, 16, 2.5), (5, 32, 4.0))
    runs = [scaled(tmp_path, n, s, devices=d) for n, d, s in settings]
    found = study(runs, "ranks")

    assert found.mode == "weak"
    assert "as much for each" in found.fixed
    assert [*points(found)] == [1, 2, 4]
    assert [p.speed_up for p in points(found).values()] == pytest.approx([1, 1.6, 2])
    assert [p.efficiency for p in points(found).values()] == pytest.approx([1, 0.8, 0.5])


@pytest.mark.parametrize(
    ("against", "option"), [("server-ranks", "server_ranks"), ("threads", "threads")]
)
def test_ranks_of_the_server_and_threads_are_scales_too(tmp_path, against, option):
    runs = [scaled(tmp_path, 9, 6 / k, cores=64, **{option: k}) for k in (1, 2, 4)]
    longer = [scaled(tmp_path, 9, 6, cores=64, dim=1000 * k, **{option: k}) for k in (1, 2, 4)]
    strong, weak = study(runs, against), study(longer, against)

    assert (strong.mode, weak.mode) == ("strong", "weak")
    for found in (strong, weak):
        assert [p.efficiency for p in points(found).values()] == pytest.approx([1, 1, 1])
        assert [p.speed_up for p in points(found).values()] == pytest.approx([1, 2, 4])


def test_nodes_are_counted_where_all_have_as_many_ranks(tmp_path):
    hosts = {4: [4], 8: [4, 4], 16: [4] * 4}
    runs = [scaled(tmp_path, n, 8 / n, hosts=each) for n, each in hosts.items()]
    found = study(runs, "nodes")

    assert [p.x for p in found.lines[0].points] == [1, 2, 4]
    assert [p.efficiency for p in found.lines[0].points] == pytest.approx([1, 1, 1])
    assert "on each of its nodes" in lacking(scaled(tmp_path, 6, 1.0, hosts=[4, 2]), "nodes")


def test_launches_of_one_configuration_are_one_point(tmp_path):
    busy = {"cores_usable": 2, "before_load_1min": 9.0}
    first, second = scaled(tmp_path, 2, 1.0, facts=busy), scaled(tmp_path, 2, 3.0, seed=1)
    found = study([first, second], "ranks")
    (point,) = found.lines[0].points

    assert len(point.samples) == 2 * len(SPREAD)
    assert point.seconds == np.median([*first.round_seconds, *second.round_seconds])
    assert found.warnings[0].startswith("a load of 9.0 on 2 cores")
    assert f"warning: {found.warnings[0]}" in table(found).notes


def test_points_whose_ranks_or_threads_share_cores_have_no_efficiency_and_are_marked(tmp_path):
    found = study([scaled(tmp_path, n, 4 / n, cores=3) for n in (2, 3, 5)], "ranks")
    threads = study([scaled(tmp_path, 1, 1 / k, cores=2, threads=k) for k in (1, 2, 4)], "threads")

    for at in (points(found), points(threads)):
        assert at[1].efficiency == 1
        assert math.isnan(at[4].efficiency)
        assert math.isnan(at[4].speed_up)
        assert not math.isnan(at[2].efficiency)
    states = [row[2] for row in table(found).values]
    assert states == ["measured", "measured", "measured, oversubscribed"]
    # Nor where cores are not recorded.
    facts = {"oversubscription_ratio": None}
    unknown = study([scaled(tmp_path, n, 1.0, facts=facts) for n in (2, 3)], "ranks")
    assert all(math.isnan(point.efficiency) for point in points(unknown).values())


def test_the_base_is_the_fewest_that_can_be_one(tmp_path):
    runs = [scaled(tmp_path, n, 8 / n, cores=1 if n == 2 else n) for n in (2, 3, 5)]
    at = points(study(runs, "ranks"))

    assert at[2].efficiency == 1
    assert at[4].speed_up == pytest.approx(5 / 3)


def test_lines_are_told_apart_by_what_differs_in_them(tmp_path):
    settings = itertools.product((2, 3), (0.1, 0.2), (16, 32))
    runs = [
        scaled(tmp_path, n, 1.0, protocol="sparse", alpha=alpha, devices=d)
        for n, alpha, d in settings
    ]
    facts = ({}, {"cpu_model": "slide rule"})
    machines = [scaled(tmp_path, n, 1.0, facts=one) for n in (2, 3) for one in facts]

    assert [line.name for line in study(runs, "ranks").lines] == [
        *("sparse, alpha 0.1, N = 16", "sparse, alpha 0.1, N = 32"),
        *("sparse, alpha 0.2, N = 16", "sparse, alpha 0.2, N = 32"),
    ]
    assert [line.name for line in study(machines, "ranks").lines] == [
        *("secagg, cpu model abacus", "secagg, cpu model slide rule"),
    ]


@pytest.mark.parametrize("change", [{"devices": 99}, {"dim": 999}])
def test_runs_that_do_not_go_together_are_refused_with_a_sentence(tmp_path, change):
    runs = [scaled(tmp_path, 2, 1.0), scaled(tmp_path, 3, 1.0, **change)]
    with pytest.raises(UsageError, match="neither the same"):
        study(runs, "ranks")


def test_what_is_no_point_is_said_of_a_run(tmp_path):
    run = scaled(tmp_path, 2, 1.0)

    assert [lacking(run, against) for against in SCALES] == [None] * 4
    for lacks in (
        {"training": {"accuracy": np.zeros(run.rounds)}},
        {"environment": {}},
        {"warmup": ~run.warmup},
    ):
        assert "is not of hpcfl bench" in lacking(replace(run, **lacks), "ranks")
    assert "each of its nodes" in lacking(replace(run, environment={"ranks": 2}), "nodes")
    assert "of one process" in lacking(scaled(tmp_path, 1, 1.0), "ranks")
