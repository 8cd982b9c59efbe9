"""Figures of cost and of privacy show what the results hold."""

from dataclasses import replace

import numpy as np
import pytest
from page_runs import write_run

from hpcfl.errors import UsageError
from hpcfl.plots import epsilon, phases, ranks, scaling
from hpcfl.results import load
from hpcfl.results.statistics import median_interval


def lines(axes):
    """Return the lines of panels that show measurements: no guides, no samples of a legend."""
    return [one.lines[0] for one in axes.containers]


def guide(axes):
    (found,) = [one for one in axes.lines if one.get_color() == "0.85"]
    return found


def test_scaling_shows_medians_and_intervals_of_seconds_cpu_and_bytes(tmp_path):
    runs = [load(write_run(tmp_path / f"{n}.h5", devices=n)) for n in (4, 8, 16)]
    figure = scaling.draw(runs)
    measured, _, device, server, one, everyone = figure.axes

    (line,) = lines(measured)
    assert list(line.get_xdata()) == [4, 8, 16]
    np.testing.assert_allclose(line.get_ydata(), [1e3 * np.median(r.round_seconds) for r in runs])
    bars = measured.containers[0].lines[2][0].get_segments()
    for run, bar in zip(runs, bars, strict=True):
        interval = median_interval(1e3 * run.round_seconds)
        np.testing.assert_allclose(bar[:, 1], [interval.low, interval.high])
    cpu = [[2 * 1e3 * 1e-3 * n * 1.3] for n in (4, 8, 16)]  # two phases, the middle round
    for axes in (device, server):
        np.testing.assert_allclose(lines(axes)[0].get_ydata(), np.ravel(cpu))
    np.testing.assert_allclose(lines(one)[0].get_ydata(), [16 * n + 40 for n in (4, 8, 16)])
    sent = [n * (16 * n + 40) / 1e3 for n in (4, 8, 16)]
    np.testing.assert_allclose(lines(everyone)[0].get_ydata(), sent)
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in figure.axes} == {("log", "log")}
    assert [axes.get_title().replace("\n", " ") for axes in figure.axes] == [
        *("round, measured, ms", "round, modelled, ms", "CPU of the slowest device, ms"),
        *("CPU of the server, ms", "sent up by a survivor, B", "sent up by all devices, kB"),
    ]
    words = figure.get_suptitle().replace("\n", " ").replace("\xa0", " ")
    assert words == "d = 10; medians with 95 % intervals; modelled at 100/100 Mbit/s, 0 ms"


@pytest.mark.parametrize(
    ("rounds", "words"),
    [(1, "of one round each"), (5, "medians"), (6, "medians with 95 % intervals")],
)
def test_scaling_speaks_of_intervals_where_there_are_some(tmp_path, rounds, words):
    runs = [load(write_run(tmp_path / f"{n}.h5", devices=n, rounds=rounds)) for n in (4, 8)]
    figure = scaling.draw(runs)

    assert words in figure.get_suptitle().split("; ")
    ends = figure.axes[0].containers[0].lines[2][0].get_segments()
    assert any(map(len, ends)) == ("intervals" in words)


def test_guides_lie_amid_all_points_and_bytes_of_a_device_have_a_level_one(tmp_path):
    runs = [
        load(write_run(tmp_path / f"{p}{n}.h5", protocol=p, devices=n))
        for n in (4, 8, 16)
        for p in ("sparse", "secagg")
    ]
    # A first point that is noisy moves the guide by a sixth of what it moves itself.
    noisy = replace(runs[0], round_seconds=64 * runs[0].round_seconds)
    plain, moved = (scaling.draw([one, *runs[1:]]).axes[0] for one in (runs[0], noisy))

    low, high = guide(plain).get_ydata()
    assert high / low == pytest.approx(4)
    assert guide(moved).get_ydata()[0] / low == pytest.approx(64 ** (1 / 6))
    one_device = scaling.draw(runs).axes[4]
    assert guide(one_device).get_ydata()[0] == pytest.approx(guide(one_device).get_ydata()[1])
    for axes in scaling.draw(
        [load(write_run(tmp_path / f"d{d}.h5", dim=d)) for d in (9, 90)], against="dim"
    ).axes:
        low, high = guide(axes).get_ydata()
        assert high == pytest.approx(10 * low)


def test_runs_at_one_place_stand_side_by_side(tmp_path):
    runs = [load(write_run(tmp_path / f"{p}.h5", protocol=p)) for p in ("sparse", "secagg", "prf")]
    axes = scaling.draw(runs, against="dim").axes[0]

    assert len({line.get_xdata()[0] for line in lines(axes)}) == 3
    assert not [one for one in axes.lines if one.get_color() == "0.85"]  # no guide


def test_launches_with_the_same_size_are_one_point(tmp_path):
    runs = [load(write_run(tmp_path / f"{k}.h5", rounds=k, seed=k)) for k in (2, 5)]
    (line,) = lines(scaling.draw(runs).axes[0])
    seconds = np.concatenate([r.round_seconds for r in runs])

    assert list(line.get_ydata()) == pytest.approx([1e3 * np.median(seconds)])


def test_a_degree_that_follows_from_the_size_makes_no_other_line(tmp_path):
    def named(*runs):
        found = [
            load(write_run(tmp_path / f"{n}-{k}-{number}.h5", devices=n, degree=k))
            for number, (n, k) in enumerate(runs)
        ]
        _, names = scaling.draw(found).axes[0].get_legend_handles_labels()
        return sorted(name for name in names if name.startswith("sparse"))

    assert named((8, 4), (16, 6)) == ["sparse"]
    assert named((9, 4), (9, 6)) == ["sparse, degree 4", "sparse, degree 6"]


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

    for axes, widths in ((device, [1, 5]), (server, [30, 40]), (sent, [64, 40])):
        bars = [patch for patch in axes.patches if patch.get_width() > 0]
        np.testing.assert_allclose([bar.get_width() for bar in bars], widths)
        np.testing.assert_allclose([bar.get_x() for bar in bars], [0, widths[0]])
        assert len({bar.get_facecolor() for bar in bars}) == 2
        assert {bar.get_hatch() for bar in bars} == {""}
    assert device.get_title() == "CPU of the slowest device, ms"
    assert sent.get_title() == "sent up by a survivor, B"
    assert device.get_yticklabels()[0].get_text() == "sparse, N = 4"
    with pytest.raises(UsageError, match="41 runs"):
        phases.draw([run] * 41)


def test_a_device_that_dropped_out_is_in_no_distribution(tmp_path):
    run = load(write_run(tmp_path / "a.h5"))
    survived = run.survived.copy()
    survived[:, 1] = False
    run = replace(run, survived=survived)
    devices, server = ranks.draw([run], clock="wall").axes

    values = 1e3 * run.wall_seconds.sum(axis=1)[:, [0, 2, 3]].ravel()
    np.testing.assert_allclose(devices.lines[0].get_xdata()[1:], np.sort(values))
    assert devices.lines[0].get_ydata()[-1] == 1
    spent = 1e3 * run.wall_seconds.sum(axis=1)[:, -1]
    np.testing.assert_allclose(server.lines[0].get_xdata()[1:], spent)
    assert "elapsed" in devices.get_xlabel()


def test_boxes_are_of_devices_for_one_run_and_of_runs_for_several(tmp_path):
    runs = [load(write_run(tmp_path / f"{n}.h5", devices=n)) for n in (4, 8)]
    one, server = ranks.draw(runs[:1], spread="box").axes
    both, _ = ranks.draw(runs, spread="box").axes

    assert [len(axes.patches) for axes in (one, server, both)] == [4, 1, 2]
    tops = [line.get_ydata().max() for line in one.lines if len(line.get_ydata())]
    most = 1e3 * runs[0].cpu_seconds.sum(axis=1)[:, :-1].max()
    assert one.get_ylim()[1] > max(tops) == pytest.approx(most)


def test_both_epsilons_are_drawn_and_told_apart(tmp_path):
    path = write_run(tmp_path / "a.h5", training=True, algorithm="cdp", epsilon_delta=1e-5)
    run = load(path)
    left, right = epsilon.draw([run]).axes
    paper, proven = left.lines[:2]

    np.testing.assert_allclose(paper.get_ydata(), 1.5 * np.arange(1, 8))
    np.testing.assert_allclose(proven.get_ydata(), np.arange(1, 8))
    np.testing.assert_allclose(right.lines[1].get_xdata(), np.arange(1, 8))
    np.testing.assert_allclose(right.lines[1].get_ydata(), 0.1 * np.arange(1, 8))
    assert paper.get_linestyle() != proven.get_linestyle()
    assert left.get_ylabel() == right.get_xlabel() == "epsilon (delta = 1e-05)"
    assert list(paper.get_xdata()) == list(range(7))  # as tables count rounds


def test_a_curve_that_is_the_same_as_another_one_is_seen_beneath_it(tmp_path):
    runs = [
        load(write_run(tmp_path / f"{k}.h5", training=True, algorithm="cdp", learning_rate=k / 10))
        for k in (1, 2, 3)
    ]
    left, _ = epsilon.draw(runs).axes
    proven = left.lines[1:6:2]

    assert len({tuple(line.get_ydata()) for line in proven}) == 1
    assert len({line.get_fillstyle() for line in proven}) == 3
    widths = [line.get_linewidth() for line in proven]
    assert widths == sorted(set(widths), reverse=True)
    assert [line.get_zorder() for line in proven] == sorted(line.get_zorder() for line in proven)


def test_what_cannot_be_drawn_is_told(tmp_path):
    plain = load(write_run(tmp_path / "a.h5"))
    trained = load(write_run(tmp_path / "b.h5", training=True))
    nothing = {name: np.full(7, np.nan) for name in ("epsilon_paper", "epsilon_proven")}
    unmeasured = replace(plain, validated=np.zeros(7, bool))

    assert epsilon.lacking(trained) is None
    assert "no training" in str(epsilon.lacking(plain))
    public = replace(trained, training=trained.training | nothing)
    assert "records no finite epsilon" in str(epsilon.lacking(public))
    for module in (phases, ranks, scaling):
        assert module.lacking(plain) is None
        assert module.lacking(unmeasured) == "has no measured round"
