"""Figures of cost and of privacy show what the results hold."""

from dataclasses import replace

import numpy as np
import pytest
from page_runs import write_run

from hpcfl.errors import UsageError
from hpcfl.plots import epsilon, phases, ranks, scaling
from hpcfl.results import load
from hpcfl.results.statistics import median_interval


def test_scaling_shows_medians_intervals_and_ideal_lines(tmp_path):
    runs = [load(write_run(tmp_path / f"{n}.h5", devices=n)) for n in (4, 8, 16)]
    axes = scaling.draw(runs, "devices").axes
    measured, modelled, one, everyone = axes
    line = measured.containers[0].lines[0]
    (ideal,) = [one for one in measured.lines if one.get_linewidth() == 0.6]
    medians = [np.median(run.round_seconds) for run in runs]

    assert list(line.get_xdata()) == [4, 8, 16]
    np.testing.assert_allclose(line.get_ydata(), medians)
    np.testing.assert_allclose(ideal.get_ydata(), medians[0] * np.array([1, 2, 4]))
    bars = measured.containers[0].lines[2][0].get_segments()
    for run, bar in zip(runs, bars, strict=True):
        interval = median_interval(run.round_seconds)
        np.testing.assert_allclose(bar[:, 1], [interval.low, interval.high])
    np.testing.assert_allclose(one.lines[0].get_ydata(), [16 * n + 40 for n in (4, 8, 16)])
    np.testing.assert_allclose(
        everyone.lines[0].get_ydata(), [n * (16 * n + 40) for n in (4, 8, 16)]
    )
    flat = [line for line in one.lines if line.get_linewidth() == 0.6]
    np.testing.assert_allclose(flat[0].get_ydata(), [104, 104, 104])
    assert (measured.get_xscale(), measured.get_yscale()) == ("log", "log")
    assert "measured, s" in measured.get_ylabel()
    assert "modelled at" in modelled.get_ylabel()


def test_scaling_over_parameters_is_proportional_in_all_panels(tmp_path):
    runs = [load(write_run(tmp_path / f"{d}.h5", dim=d)) for d in (10, 100)]
    for axes in scaling.draw(runs, "dim").axes:
        (ideal,) = [line for line in axes.lines if line.get_linewidth() == 0.6]
        low, high = ideal.get_ydata()
        assert high == pytest.approx(10 * low)


def test_launches_with_the_same_size_are_one_point(tmp_path):
    runs = [load(write_run(tmp_path / f"{k}.h5", rounds=k, seed=k)) for k in (2, 5)]
    (line, *_) = scaling.draw(runs).axes[0].lines

    assert list(line.get_ydata()) == [np.median(np.concatenate([r.round_seconds for r in runs]))]


def test_a_degree_that_follows_from_the_size_makes_no_other_line(tmp_path):
    def lines(*runs):
        found = [
            load(write_run(tmp_path / f"{n}-{k}-{number}.h5", devices=n, degree=k))
            for number, (n, k) in enumerate(runs)
        ]
        _, names = scaling.draw(found).axes[0].get_legend_handles_labels()
        return sorted(name for name in names if name.startswith("sparse"))

    assert lines((8, 4), (16, 6)) == ["sparse"]
    assert lines((9, 4), (9, 6)) == ["sparse, degree 4", "sparse, degree 6"]


def test_runs_for_different_links_are_not_drawn_together(tmp_path):
    runs = [load(write_run(tmp_path / f"{k}.h5", uplink_mbps=float(k))) for k in (1, 2)]
    with pytest.raises(UsageError, match="different links"):
        scaling.draw(runs)


def test_phases_are_stacked_and_devices_and_server_apart(tmp_path):
    run = load(write_run(tmp_path / "a.h5"))
    cpu = run.cpu_seconds.copy()
    cpu[:, 0, :-1], cpu[:, 1, :-1], cpu[:, 0, -1], cpu[:, 1, -1] = 0.001, 0.002, 0.03, 0.04
    cpu[:, 1, 2] = 0.005  # the slowest device counts
    device, server, sent = phases.draw([replace(run, cpu_seconds=cpu)]).axes

    for axes, widths in ((device, [1, 5]), (server, [30, 40]), (sent, [0.064, 0.040])):
        bars = [patch for patch in axes.patches if patch.get_width() > 0]
        np.testing.assert_allclose([bar.get_width() for bar in bars], widths)
        np.testing.assert_allclose([bar.get_x() for bar in bars], [0, widths[0]])
        assert len({bar.get_hatch() for bar in bars}) == 2
    assert device.get_xlabel() == "CPU of the slowest device, ms"
    assert device.get_yticklabels()[0].get_text() == "sparse, N = 4"
    with pytest.raises(UsageError, match="41 runs"):
        phases.draw([run] * 41)


def test_a_device_that_dropped_out_is_in_no_distribution(tmp_path):
    run = load(write_run(tmp_path / "a.h5"))
    survived = run.survived.copy()
    survived[:, 1] = False
    run = replace(run, survived=survived)
    devices, server = ranks.draw([run], "ecdf", "wall").axes

    values = run.wall_seconds.sum(axis=1)[:, [0, 2, 3]].ravel()
    np.testing.assert_allclose(devices.lines[0].get_xdata()[1:], np.sort(values))
    assert devices.lines[0].get_ydata()[-1] == 1
    np.testing.assert_allclose(server.lines[0].get_xdata()[1:], run.wall_seconds.sum(axis=1)[:, -1])
    assert "elapsed" in devices.get_xlabel()


def test_boxes_are_of_devices_for_one_run_and_of_runs_for_several(tmp_path):
    runs = [load(write_run(tmp_path / f"{n}.h5", devices=n)) for n in (4, 8)]
    one, server = ranks.draw(runs[:1], "box").axes
    both, _ = ranks.draw(runs, "box").axes

    assert [len(axes.patches) for axes in (one, server, both)] == [4, 1, 2]
    tops = [line.get_ydata().max() for line in one.lines if len(line.get_ydata())]
    assert one.get_ylim()[1] > max(tops) == pytest.approx(runs[0].cpu_seconds.sum(axis=1).max())


def test_both_epsilons_are_drawn_and_told_apart(tmp_path):
    run = load(write_run(tmp_path / "a.h5", training=True, algorithm="cdp"))
    left, right = epsilon.draw([run]).axes
    paper, proven = left.lines

    np.testing.assert_allclose(paper.get_ydata(), 1.5 * np.arange(1, 8))
    np.testing.assert_allclose(proven.get_ydata(), np.arange(1, 8))
    np.testing.assert_allclose(right.lines[1].get_xdata(), np.arange(1, 8))
    np.testing.assert_allclose(right.lines[1].get_ydata(), 0.1 * np.arange(1, 8))
    assert paper.get_linestyle() != proven.get_linestyle()
    assert paper.get_fillstyle() != proven.get_fillstyle()


def test_what_cannot_be_drawn_is_told(tmp_path):
    plain = load(write_run(tmp_path / "a.h5"))
    trained = load(write_run(tmp_path / "b.h5", training=True))
    nothing = {name: np.full(7, np.nan) for name in ("epsilon_paper", "epsilon_proven")}
    unmeasured = replace(plain, validated=np.zeros(7, bool))

    assert epsilon.lacking(trained) is None
    assert "no training" in str(epsilon.lacking(plain))
    public = replace(trained, training=trained.training | nothing)
    assert "records no epsilon" in str(epsilon.lacking(public))
    for module in (phases, ranks, scaling):
        assert module.lacking(plain) is None
        assert module.lacking(unmeasured) == "has no measured round"
