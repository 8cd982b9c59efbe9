"""What is drawn is what the results hold, and it looks the same in every figure."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from run_files import new_writer, ranked_record, write_growing

import hpcfl
from hpcfl.algorithms.aggregation import find
from hpcfl.errors import UsageError
from hpcfl.options.protocols import MaskingOptions
from hpcfl.plots import AGAINST, chosen, naming, style, tradeoff
from hpcfl.privacy.population import Population
from hpcfl.results import load
from hpcfl.results.statistics import median_interval


def draw(kind, runs, **options):
    """Return a figure, laid out as when it is saved."""
    figure = chosen(kind, options).draw(runs)
    figure.draw_without_rendering()
    return figure


def legend(figure):
    (found,) = figure.legends
    return [text.get_text().replace("\xa0", " ") for text in found.get_texts()]


def title(figure):
    return figure.get_suptitle().replace("\xa0", " ")


def measured(axes):
    """Return the lines with error bars: no guides, no samples of a legend."""
    return [one.lines[0] for one in axes.containers if hasattr(one, "lines")]


@pytest.fixture
def run_of(tmp_path):
    """Return a function that writes a run, as `write_growing` does, and loads it."""
    count = iter(range(100))
    return lambda *sizes, **config: load(
        write_growing(tmp_path / f"{next(count)}.h5", *sizes, **config)
    )


@pytest.fixture
def trained(run_of):
    """Return a function that makes a training with known figures."""
    return lambda **config: run_of(training=True, dataset="digits", partition="iid", **config)


def test_scaling_shows_medians_and_intervals_of_seconds_cpu_and_bytes(run_of):
    runs = [run_of("sparse", n) for n in (4, 8, 16)]
    figure = draw("scaling", runs)
    axes = dict(zip((one.get_title() for one in figure.axes), figure.axes, strict=True))

    (line,) = measured(axes["round, measured"])
    assert list(line.get_xdata()) == [4, 8, 16]
    np.testing.assert_allclose(line.get_ydata(), [np.median(r.round_seconds) for r in runs])
    bars = axes["round, measured"].containers[0].lines[2][0].get_segments()
    for run, bar in zip(runs, bars, strict=True):
        interval = median_interval(run.round_seconds)
        np.testing.assert_allclose(bar[:, 1], [interval.low, interval.high])
    expected = {
        "CPU of the slowest device": [2e-3 * n * 1.3 for n in (4, 8, 16)],
        "CPU of the server": [2e-3 * n * 1.3 for n in (4, 8, 16)],  # two phases, the middle round
        "sent up by a survivor": [16 * n + 40 for n in (4, 8, 16)],
        "sent up by all devices": [n * (16 * n + 40) for n in (4, 8, 16)],
        "round, modelled": [np.median(r.modelled_seconds(r.link()).sum(axis=1)) for r in runs],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(measured(axes[name])[0].get_ydata(), values)
    assert {(one.get_xscale(), one.get_yscale()) for one in figure.axes} == {("log", "log")}
    assert title(figure) == "d = 10; medians, 95 % intervals; modelled at 100/100 Mbit/s, 0 ms"


def test_launches_of_one_size_are_one_point_and_what_follows_from_it_makes_no_line(run_of):
    runs = [run_of(rounds=k, seed=k) for k in (2, 5)]
    seconds = np.concatenate([run.round_seconds for run in runs])
    assert measured(draw("scaling", runs).axes[0])[0].get_ydata() == [np.median(seconds)]

    def lines(*sizes):
        found = draw("scaling", [run_of("sparse", n, degree=k) for n, k in sizes])
        return sorted(name for name in legend(found) if name.startswith("sparse"))

    assert lines((8, 4), (16, 6)) == ["sparse"]
    assert lines((9, 4), (9, 6)) == ["sparse, degree 4", "sparse, degree 6"]
    with pytest.raises(UsageError, match="different links"):
        draw("scaling", [run_of(uplink_mbps=float(k)) for k in (1, 2)])


def test_phases_are_stacked_and_devices_and_server_apart(run_of):
    run = run_of()
    cpu = run.cpu_seconds.copy()
    cpu[:, 0, :-1], cpu[:, 1, :-1], cpu[:, 0, -1], cpu[:, 1, -1] = 0.001, 0.002, 0.03, 0.04
    cpu[:, 1, 2] = 0.005  # the slowest device counts
    figure = draw("phases", [replace(run, cpu_seconds=cpu)])

    widths = ([1e-3, 5e-3], [30e-3, 40e-3], [64, 40])
    for axes, expected in zip(figure.axes, widths, strict=True):
        bars = [patch for patch in axes.patches if patch.get_width() > 0]
        np.testing.assert_allclose([bar.get_width() for bar in bars], expected)
        np.testing.assert_allclose([bar.get_x() for bar in bars], [0, expected[0]])
        assert len({bar.get_facecolor() for bar in bars}) == 2
        (dot,) = measured(axes)[-1:]
        np.testing.assert_allclose(dot.get_xdata().astype(float), [sum(expected)])
    member = np.tile([True, False, False, False], (run.rounds, 1))
    committee = replace(run, cpu_seconds=cpu, in_committee=member)
    other = replace(run, protocol="other")
    titles = [axes.get_title() for axes in draw("phases", [committee, other]).axes]
    assert "CPU of the slowest member" in titles


def test_a_timeline_has_a_row_a_rank_and_bars_that_begin_where_phases_did(tmp_path, run_of):
    with new_writer(tmp_path / "times.h5", rounds=4, ranks=3) as writer:
        for scale in (1, 2, 3, 4):
            writer.append(ranked_record(scale, warmup=scale == 1))
    run = load(tmp_path / "times.h5")
    figure = draw("timeline", [run])
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if bar.get_width() > 0]
    waiting = [bar for bar in bars if bar.get_hatch() == "////"]

    # Of the measured rounds 1, 2 and 3 round 2 is the median.
    assert "round 2; clocks of hosts to 3 microseconds" in title(figure)
    # All ranks compute and are in MPI in all phases; the server does not wait.
    assert (len(bars), len(waiting)) == (3 * 3 * 2 + 3 * 2, 3 * 2)
    first = next(bar for bar in bars if round(bar.get_y() + bar.get_height() / 2) == 1)
    assert first.get_x() == pytest.approx(0.1 * 3)
    assert first.get_width() == pytest.approx(0.5 * 3)
    assert "round 0" in title(draw("timeline", [run], round=0))
    assert chosen("timeline", {"round": 3}).lacking(run) is None
    assert "has no round 4" in chosen("timeline", {"round": 4}).lacking(run)
    assert "does not record" in chosen("timeline", {}).lacking(run_of())
    with pytest.raises(UsageError, match="one run"):
        draw("timeline", [run, run])


def test_a_point_of_the_tradeoff_lies_where_bytes_and_cpu_of_each_party_say(tmp_path):
    size = {"devices": 20, "dim": 200, "rounds": 2, "warmup": 0, "dropout": 0.1}
    names = ("assisted", "committee", "fedavg")
    runs = [hpcfl.bench(name, **size, output=tmp_path) for name in names]
    figure = draw("tradeoff", runs)
    found = [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() != "white")
        for line in figure.axes[0].lines
        if len(line.get_xdata()) == 1
    ]
    expected = []
    for run in runs:
        sent, spent = run.bytes_up.sum(axis=1), run.cpu_seconds[..., :-1].sum(axis=1)
        member = run.in_committee
        for among, filled in ((run.survived & ~member, True), (run.survived & member, False)):
            if among.any():
                expected.append((sent[among].mean(), spent[among].mean(), filled))
    helped = runs[0]
    place = helped.helper_bytes_up.sum(axis=1).mean(), helped.helper_cpu_seconds.sum(axis=1).mean()
    expected.append((*place, False))
    np.testing.assert_allclose(sorted({*found}), sorted(expected))


@pytest.mark.parametrize(("name", "degree"), [("sparse", None), ("sparse", 10), ("cohort", None)])
def test_the_share_learned_alone_is_that_of_the_run(name, degree):
    run = hpcfl.bench(name, devices=32, dim=60, rounds=1, warmup=0, dropout=0.1, degree=degree)
    masking = find(name).masking(32, MaskingOptions(alpha=0.1, degree=degree))
    population = Population(32, 10, 0.1)
    alone = masking.against(population).alone_of_sent(population)
    assert tradeoff.exposed_alone(run) == pytest.approx(alone) != 0


def test_accuracy_is_drawn_over_what_was_spent(trained):
    private = trained(algorithm="cdp", epsilon_delta=1e-5)
    spent = {
        "rounds": np.arange(7),
        "bytes": 1e6 * np.arange(1, 8),
        "seconds": 0.5 * np.arange(1, 8),
        "epsilon": np.arange(1, 8),
    }
    assert [*spent] == [*AGAINST["accuracy"]]
    for against, across in spent.items():
        figure = draw("accuracy", [private], against=against)
        line = figure.axes[0].lines[-1]
        np.testing.assert_allclose(line.get_xdata(), across)
        np.testing.assert_allclose(line.get_ydata(), 0.1 * np.arange(1, 8))
        assert legend(figure) == ["cdp"]
        assert title(figure).startswith("digits, iid, N = 4, d = 10")
    claimed, proven = figure.axes[0].lines
    np.testing.assert_allclose(claimed.get_xdata(), 1.5 * np.arange(1, 8))
    assert (claimed.get_linestyle(), proven.get_linestyle()) == (":", "-")
    validated = private.validated.copy()
    validated[1] = False
    (axes,) = draw("accuracy", [replace(private, validated=validated)], against="seconds").axes
    # A wrong round is left out, but was spent.
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0.5, 1.5, 2.0, 2.5, 3.0, 3.5])


def test_runs_that_differ_in_their_seeds_alone_are_a_mean_in_a_band(trained):
    runs = [trained(rounds=3, seed=k, alpha=0.1) for k in range(3)]
    shifted = runs[0].training["accuracy"] + 0.1
    runs[0] = replace(runs[0], training=runs[0].training | {"accuracy": shifted})
    figure = draw("accuracy", [*runs, trained(alpha=0.5)])
    axes = figure.axes[0]
    (band,) = axes.collections

    assert legend(figure) == ["sparse, alpha 0.1, 3 seeds", "sparse, alpha 0.5"]
    middle = 0.1 * np.arange(1, 4) + 0.1 / 3
    np.testing.assert_allclose(axes.lines[0].get_ydata(), middle)
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(middle[-1] + np.std([0.1, 0, 0], ddof=1))
    assert "mean and standard deviation over seeds" in title(figure)


def test_what_cannot_be_drawn_is_told(run_of, trained):
    plain, run = run_of(), trained()
    wrong = np.zeros(7, bool)
    public = run.training | {"epsilon_paper": np.full(7, np.nan)}
    public |= {"epsilon_proven": np.full(7, np.nan)}
    short = replace(run, training={"accuracy": run.training["accuracy"]})

    def lacking(kind, run, **options):
        return chosen(kind, options).lacking(run)

    for against in AGAINST["accuracy"]:
        assert lacking("accuracy", run, against=against) is None
    assert lacking("accuracy", short) is None
    for one, options, words in (
        (plain, {}, "no training"),
        (replace(run, training=public), {"against": "epsilon"}, "records no finite epsilon"),
        (short, {"against": "bytes"}, "does not record bytes_up_total"),
        (replace(run, validated=wrong), {}, "has no finished round"),
    ):
        assert words in lacking("accuracy", one, **options)
    for kind in ("phases", "scaling", "tradeoff"):
        assert lacking(kind, plain) is None
        assert lacking(kind, replace(plain, validated=wrong)) == "has no measured round"


def test_runs_are_named_by_what_tells_them_apart(run_of):
    alike = {"dropout": 0.1, "model": "softmax"}
    runs = [
        run_of("sparse", 4, degree=None, seed=0, **alike),
        run_of("sparse", 4, degree=None, seed=1, **alike),
        run_of("secagg", 8, degree=3, seed=0, **alike),
        run_of("secagg", 8, degree=7, seed=0, **alike),
    ]
    names = [name.replace("\xa0", " ") for name in naming.labels(runs)]

    # A degree of all others is the rule, and not said.
    assert names == [
        *("sparse, N = 4, seed 0", "sparse, N = 4, seed 1"),
        *("secagg, N = 8, degree 3", "secagg, N = 8"),
    ]
    assert "softmax, d = 10" in naming.common(runs).replace("\xa0", " ")
    assert naming.unique(runs[:2], ["a", "a"]) == ["a, 0", "a, 1"]


@pytest.mark.parametrize("ending", [".svg", ".pdf"])
def test_a_figure_is_of_the_size_that_is_asked_for_and_saved_the_same_each_time(
    tmp_path, run_of, ending
):
    before = dict(matplotlib.rcParams.copy())
    run, paths = run_of(), [tmp_path / f"{k}{ending}" for k in range(2)]
    for path in paths:
        figure = draw("phases", [run], size="column", title="Own")
        style.save(figure, path)

    assert figure.get_size_inches()[0] == 3.33
    assert figure.get_suptitle() == "Own"
    assert draw("phases", [run_of()], title="").get_suptitle() == ""
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if ending == ".pdf":
        assert b"/Type3" not in paths[0].read_bytes()  # which publishers refuse
    # Nothing of pyplot or of global settings is touched.
    assert dict(matplotlib.rcParams.copy()) == before
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("phases", {"against": "dim"}, "--against dim has no meaning for --kind phases"),
        ("accuracy", {"against": "dim"}, "choose rounds, bytes, seconds, epsilon"),
        ("phases", {"size": "3x"}, "choose one of column, page"),
    ],
)
def test_what_has_no_meaning_is_refused(kind, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        chosen(kind, options)
