"""Speed-up and efficiency against examples worked out by hand, and which runs are a line."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from run_files import write_growing

from hpcfl.options.report import SCALES
from hpcfl.plots import chosen
from hpcfl.report.table import RULE
from hpcfl.results import load
from hpcfl.results.scaling import lacking, table

# Factors with the median 1, for enough rounds for an interval of 97.5 %.
SPREAD = np.array([0.8, 0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2])
_NUMBERS = itertools.count()


def scaled(
    folder,
    ranks,
    seconds,
    *,
    protocol="secagg",
    devices=16,
    dim=1000,
    hosts=(),
    facts=None,
    cores=None,
    **config,
):
    """Return a run on `ranks` ranks, by default with as many cores, with this median round time."""
    name = f"{protocol}-{ranks}-{next(_NUMBERS)}"
    cores = ranks if cores is None else cores
    environment = {
        "transport": "mpi" if ranks > 1 else "loopback",
        "ranks": ranks,
        "host_ranks": list(hosts) or [ranks],
        "oversubscription_ratio": ranks / cores,
        "cpu_model": "abacus",
    }
    # Files of several server ranks have data of every rank, which these files lack.
    later = {name: config.pop(name) for name in ("server_ranks",) if name in config}
    path = write_growing(
        *(folder / f"{name}.h5", protocol, devices, dim),
        rounds=len(SPREAD),
        facts=environment | (facts or {}),
        **config,
    )
    run = load(path)
    asked = {"protocol": protocol, "devices": [devices], "dim": dim, **config, **later}
    return replace(run, round_seconds=seconds * SPREAD, config=run.config | later, asked=asked)


def column(runs, name, against="ranks"):
    return [row[name] for row in table(runs, against).records()]


def test_strong_scaling_is_the_bases_seconds_over_those_of_more_ranks(tmp_path):
    # 2, 3 and 5 ranks are 1, 2 and 4 that hold devices.
    runs = [scaled(tmp_path, n, s) for n, s in ((5, 4.0), (3, 8.0), (2, 12.0))]

    assert column(runs, "x") == [1, 2, 4]
    assert column(runs, "speed_up") == pytest.approx([1, 1.5, 3])
    assert column(runs, "efficiency") == pytest.approx([1, 0.75, 0.75])
    # Nine rounds: the 95 % interval is from the second smallest to the second largest.
    assert column(runs, "round_seconds_low") == pytest.approx([10.8, 7.2, 3.6])


def test_ranks_that_took_no_part_are_not_counted(tmp_path):
    settings = ((2, 12.0), (5, 4.0), (17, 2.0))
    runs = [scaled(tmp_path, n, s, devices=8) for n, s in settings]

    # Sixteen ranks for eight devices.
    assert column(runs, "x") == [1, 4, 8]
    assert column(runs, "efficiency")[2] == pytest.approx(12 / 2 / 8)


def test_weak_scaling_counts_the_work_that_has_grown(tmp_path):
    settings = ((2, 8, 2.0), (3, 16, 2.5), (5, 32, 4.0))
    runs = [scaled(tmp_path, n, s, devices=d) for n, d, s in settings]

    assert column(runs, "x") == [1, 2, 4]
    assert column(runs, "speed_up") == pytest.approx([1, 1.6, 2])
    assert column(runs, "efficiency") == pytest.approx([1, 0.8, 0.5])


@pytest.mark.parametrize(
    ("against", "option"), [("server-ranks", "server_ranks"), ("threads", "threads")]
)
def test_ranks_of_the_server_and_threads_are_scales_too(tmp_path, against, option):
    strong = [scaled(tmp_path, 9, 6 / k, cores=64, **{option: k}) for k in (1, 2, 4)]
    weak = [scaled(tmp_path, 9, 6, cores=64, dim=1000 * k, **{option: k}) for k in (1, 2, 4)]

    for runs in (strong, weak):
        assert column(runs, "efficiency", against) == pytest.approx([1, 1, 1])
        assert column(runs, "speed_up", against) == pytest.approx([1, 2, 4])


def test_nodes_are_counted_where_all_have_as_many_ranks(tmp_path):
    hosts = {4: [4], 8: [4, 4], 16: [4] * 4}
    runs = [scaled(tmp_path, n, 8 / n, hosts=each) for n, each in hosts.items()]

    assert column(runs, "x", "nodes") == [1, 2, 4]
    assert column(runs, "efficiency", "nodes") == pytest.approx([1, 1, 1])
    assert "on each of its nodes" in lacking(scaled(tmp_path, 6, 1.0, hosts=[4, 2]), "nodes")


def test_launches_of_one_configuration_are_one_row(tmp_path):
    first, second = scaled(tmp_path, 2, 1.0), scaled(tmp_path, 2, 3.0, seed=1)

    assert column([first, second], "round_seconds_median") == [
        np.median([*first.round_seconds, *second.round_seconds])
    ]


def test_where_ranks_share_cores_or_nothing_is_known_there_is_no_efficiency(tmp_path):
    runs = [scaled(tmp_path, n, 8 / n, cores=1 if n == 2 else n) for n in (2, 3, 5)]
    assert column(runs, "efficiency") == [None, 1, pytest.approx(5 / 6)]
    unknown = [scaled(tmp_path, n, 1.0, facts={"oversubscription_ratio": None}) for n in (2, 3)]
    assert column(unknown, "speed_up") == [None, None]
    threads = [scaled(tmp_path, 1, 1 / k, cores=2, threads=k) for k in (1, 2, 4)]
    assert [one is None for one in column(threads, "efficiency", "threads")] == [False, False, True]


def test_what_else_the_machine_did_is_said(tmp_path):
    busy = {"cores_usable": 2, "before_load_1min": 9.0}
    runs = [scaled(tmp_path, 2, 1.0, facts=busy), scaled(tmp_path, 3, 1.0)]

    assert any("warning: a load of 9.0 on 2 cores" in note for note in table(runs, "ranks").notes)


def test_runs_of_other_options_sizes_or_machines_are_other_lines(tmp_path):
    settings = itertools.product((2, 3), (0.1, 0.2), (16, 32))
    runs = [
        scaled(tmp_path, n, 1.0, protocol="sparse", alpha=alpha, devices=d)
        for n, alpha, d in settings
    ]
    runs += [scaled(tmp_path, n, 1.0, facts={"cpu_model": "slide rule"}) for n in (2, 3)]
    found = table(runs, "ranks")

    assert [row == RULE for row in found.rows].count(True) == 4
    assert [row["efficiency"] for row in found.records()] == [1, 0.5] * 5
    drawing = chosen("scaling", {"against": "ranks"})
    (_, *labels) = sorted(drawing.draw(runs).axes[0].get_legend_handles_labels()[1])
    assert labels == [
        f"sparse, N\xa0=\xa0{n}, alpha {alpha}" for n in (16, 32) for alpha in (0.1, 0.2)
    ]
    (line,) = drawing.draw(runs[-2:]).axes[0].lines[:1]
    assert list(line.get_xdata()) == [1, 2]


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
