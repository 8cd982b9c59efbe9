"""What is drawn is what the results hold."""

import itertools
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb
from run_files import new_writer

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import UsageError
from hpcfl.plots import KINDS, accuracy, chosen, exposure, partition, style
from hpcfl.privacy.exposure import exposure as exposure_of
from hpcfl.privacy.population import Population
from hpcfl.results import load
from hpcfl.results.record import RoundRecord
from hpcfl.system import outputs

APART = style.Frame(pool=False)
TABLE = np.arange(12).reshape(4, 3)
FIGURES = ("accuracy", "bytes_up_total", "modelled_seconds")


@pytest.fixture
def trained(tmp_path):
    """Return a function that makes a run whose figures are easy to tell apart."""

    def make(name="a.h5", rounds=3, *, wrong=None, table=TABLE, figures=FIGURES, **config):
        with new_writer(
            tmp_path / name,
            config={"dataset": "digits", "partition": "iid", "algorithm": "fedavg"} | config,
            environment={},
            phases=["upload"],
            devices=len(table),
            rounds=max(1, rounds),
            training=figures,
            partition=table,
        ) as writer:
            for k in range(rounds):
                record = RoundRecord.empty(1, len(table))
                record.validated = k != wrong
                values = dict(zip(FIGURES, (0.5 + 0.1 * k, 2e6 * (k + 1), 1.5), strict=True))
                writer.append(record, {name: values[name] for name in figures})
        return load(tmp_path / name)

    return make


def labels(runs, against="rounds"):
    """Return the names of the lines, each on one line."""
    found = accuracy.draw(runs, replace(APART, width=20.0), against=against)
    return [name.replace("\n", " ") for name in legend(found)]


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def test_a_partition_is_drawn_with_devices_across_and_classes_up(trained):
    axes, bar = partition.draw([trained()]).axes
    (image,) = axes.images

    np.testing.assert_array_equal(image.get_array(), TABLE.T)
    assert image.origin == "lower"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("device", "class")
    assert bar.get_ylabel() == "samples (white: none)"
    assert axes.figure.get_suptitle() == "digits, iid: 66 samples on 4 devices"
    assert list(axes.get_xticks()) == [0, 1, 2, 3]
    assert list(axes.get_yticks()) == [0, 1, 2]
    assert all(tick == int(tick) for tick in bar.get_yticks())
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(d, c): str(TABLE[d, c]) for d in range(4) for c in range(3) if TABLE[d, c]}


def test_one_sample_does_not_look_like_none(trained):
    for table in ([[0, 1], [2, 60_000]], [[0, 0], [0, 1]], [[0, 0], [0, 0]]):
        axes, _ = partition.draw([trained(f"{table}.h5", table=table)]).axes
        (image,) = axes.images
        brightness = image.to_rgba(np.array([0, 1]))[:, :3].mean(axis=1)

        assert brightness[0] == 1
        assert brightness[1] < 0.95


@pytest.mark.parametrize(
    ("devices", "classes", "largest", "written"),
    [
        *((5, 10, 9999, True), (10, 10, 99_999, True), (10, 10, 99_999_999, False)),
        *((60, 10, 9, True), (100, 10, 600, False), (5, 200, 9, False)),
    ],
)
def test_numbers_are_written_where_they_fit(trained, devices, classes, largest, written):
    table = np.full((devices, classes), largest)
    figure = partition.draw([trained(table=table)])
    axes = figure.axes[0]

    assert len(axes.texts) == (table.size if written else 0)
    figure.draw_without_rendering()
    cell = axes.transData.transform([(0, 0), (1, 1)])
    for text in axes.texts[:3]:
        box = text.get_window_extent()
        assert box.width < cell[1, 0] - cell[0, 0]
        assert box.height < cell[1, 1] - cell[0, 1]


def test_numbers_are_seen_on_their_ground(trained):
    table = np.arange(1, 101).reshape(10, 10)
    axes, _ = partition.draw([trained(table=table)]).axes

    def luminance(colour):  # WCAG 2, relative luminance
        part = np.asarray(to_rgb(colour))
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    assert len(axes.texts) == 100
    assert {text.get_color() for text in axes.texts} == {"black", "white"}
    for text in axes.texts:
        ground = axes.images[0].to_rgba(np.array(int(text.get_text())))[:3]
        low, high = sorted([luminance(text.get_color()), luminance(ground)])
        assert (high + 0.05) / (low + 0.05) >= 4  # 4.58 is the most that all grounds allow


def test_a_partition_that_cannot_be_drawn_is_told(trained):
    run = trained(rounds=0)

    assert partition.lacking(run) is None
    assert "unless the algorithm is private" in partition.lacking(replace(run, partition=None))
    assert "without classes" in partition.lacking(replace(run, partition=np.ones((4, 0), int)))
    with pytest.raises(UsageError, match="there are 2: name one file"):
        partition.draw([run, run])


@pytest.mark.parametrize(
    ("against", "across"),
    [("rounds", [0, 1, 2]), ("bytes", [2, 4, 6]), ("seconds", [1.5, 3.0, 4.5])],
)
@pytest.mark.parametrize("log_x", [False, True])
def test_accuracy_is_drawn_over_what_was_spent(trained, against, across, log_x):
    figure = accuracy.draw([trained()], against=against, log_x=log_x)
    (axes,) = figure.axes
    (line,) = axes.lines

    # There is no round 0 on a logarithmic axis, where they are counted.
    counted = 1 if log_x and against == "rounds" else 0
    np.testing.assert_allclose(line.get_xdata(), np.add(across, counted))
    np.testing.assert_allclose(line.get_ydata(), [0.5, 0.6, 0.7])
    assert (
        axes.get_xlabel().replace("\xa0", " ")
        == {
            "rounds": "number of rounds" if log_x else "round (the first is 0)",
            "bytes": "sent up by all devices, MB",
            "seconds": "modelled time at 100/100 Mbit/s, 0 ms, s",
        }[against]
    )
    assert axes.get_ylabel() == "accuracy on held-out data"
    assert figure.get_suptitle() == "digits, iid"
    assert axes.get_xscale() == ("log" if log_x else "linear")
    assert legend(figure) == ["sparse, N = 4"]
    if against == "rounds" and not log_x:
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_a_wrong_round_is_left_out_but_was_spent(trained):
    run = trained(wrong=1)
    (axes,) = accuracy.draw([run], against="seconds").axes

    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1.5, 4.5])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.5, 0.7])


def test_every_run_has_its_own_line_and_name(trained):
    runs = [trained(f"{k}.h5", rounds=k + 1, seed=k) for k in range(6)]
    figure = accuracy.draw(runs, APART, target_accuracy=0.65)
    (axes,) = figure.axes

    assert [line.get_xdata().size for line in axes.lines[:6]] == [1, 2, 3, 4, 5, 6]
    assert list(axes.lines[6].get_ydata()) == [0.65, 0.65]
    assert legend(figure) == [*(f"sparse, N = 4, seed {k}" for k in range(6)), "target 0.65"]


def test_runs_are_named_by_what_tells_them_apart(trained):
    options = {
        "fedavg": {"degree": None, "dataset": "mnist"},
        "top-k": {"degree": 26, "error_feedback": True, "momentum": 0.5},
        "rand-k": {"degree": 26, "error_feedback": False, "learning_rate": 0.01},
    }
    runs = [
        trained(f"{k}.h5", seed=k, alpha=0.1, algorithm=name, **options[name])
        for k, name in enumerate(options)
    ]

    assert labels(runs) == [
        "sparse, N = 4, mnist, seed 0",
        "top-k, N = 4, digits, error feedback, seed 1",
        "rand-k, N = 4, digits, seed 2",
    ]
    assert labels(runs[:1]) == ["sparse, N = 4"]
    assert accuracy.draw(runs).get_suptitle() == "iid"


def test_the_link_tells_runs_apart_where_time_is_drawn(trained):
    runs = [trained(f"{k}.h5", uplink_mbps=float(k), seed=k) for k in (5, 100)]

    names = [f"sparse, N = 4, seed {k}" for k in (5, 100)]
    assert labels(runs, "bytes") == names
    assert labels(runs, "seconds") == [
        f"{name}, uplink mbps {k}" for name, k in zip(names, (5, 100), strict=True)
    ]


def test_runs_with_the_same_options_are_named_by_their_files(tmp_path, trained):
    (tmp_path / "more").mkdir()
    names = ["a.h5", "b.h5", "more/b.h5"]
    runs = [trained(name) for name in names]

    assert labels(runs[:2]) == ["sparse, N = 4, a.h5", "sparse, N = 4, b.h5"]
    assert labels(runs) == [
        "sparse, N = 4, a.h5",
        *(f"sparse, N = 4, b.h5, {tmp_path / name}" for name in names[1:]),
    ]


def test_a_resumed_run_is_named_so_where_its_beginning_is_missing(trained):
    run = trained(resume="b.checkpoint.npz")

    for against, said in (("rounds", ", rounds since resumed"), ("bytes", "")):
        assert labels([run], against) == [f"sparse, N = 4{said}"]


def test_what_a_run_lacks_for_its_accuracy_is_told(trained):
    run = trained()
    short = trained("b.h5", figures=["accuracy"])

    assert all(accuracy.lacking(run, against) is None for against in KINDS["accuracy"].against)
    assert accuracy.lacking(short, "rounds") is None
    assert accuracy.lacking(short, "bytes") == "does not record bytes_up_total"
    assert accuracy.lacking(short, "seconds") == "does not record modelled_seconds"
    assert "no training" in str(accuracy.lacking(replace(run, training={})))
    for rounds in (0, 1):  # no round at all, and none that is right
        run = trained(f"{rounds}.h5", rounds=rounds, wrong=0)
        assert accuracy.lacking(run) == "has no finished round"


def test_a_long_legend_lies_below_the_axes_within_the_figure(trained):
    runs = [
        trained(f"{k}.h5", seed=k, model=f"own_model_{k}:network", clip=k / 7) for k in range(12)
    ]
    plain, figure = accuracy.draw(runs[:1]), accuracy.draw(runs, APART)
    for drawn in (plain, figure):
        drawn.draw_without_rendering()
    inches = [f.axes[0].get_window_extent().height / f.dpi for f in (plain, figure)]
    (found,) = figure.legends
    box = found.get_window_extent()

    assert box.y1 < figure.axes[0].xaxis.label.get_window_extent().y0
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= 0
    assert inches[1] > 0.85 * inches[0]  # not at the expense of the data


def test_a_long_name_is_broken_at_its_commas(trained):
    long = "long-name-" * 7
    runs = [trained(f"{long}{k}.h5") for k in range(2)]
    names = legend(chosen("accuracy", {"size": "5.6x4"}).draw(runs, pool=False))

    assert names == [f"sparse, N = 4,\n{long}{k}.h5" for k in range(2)]


def test_runs_that_differ_in_their_seeds_alone_are_a_mean_in_a_band(trained):
    runs = [trained(f"{k}.h5", rounds=2 + k % 2, seed=k, alpha=0.1) for k in range(3)]
    shifted = runs[0].training["accuracy"] + 0.1
    runs[0] = replace(runs[0], training=runs[0].training | {"accuracy": shifted})
    figure = accuracy.draw([*runs, trained("other.h5", alpha=0.5)])
    axes = figure.axes[0]
    (band,) = axes.collections

    assert legend(figure) == ["sparse, N = 4, alpha 0.1, 3 seeds", "sparse, N = 4, alpha 0.5"]
    # Two rounds are common to all.
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.5 + 0.1 / 3, 0.6 + 0.1 / 3])
    reach = np.std([0.1, 0, 0], ddof=1)
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(0.6 + 0.1 / 3 + reach)
    assert "mean and standard deviation over seeds" in figure.get_suptitle()


def test_exposure_is_drawn_as_it_is_computed():
    sparse = find("sparse")
    figure = exposure.draw_over_alpha(sparse, 30, 10, [0.0, 0.3])
    left, right = figure.axes

    for (number, dropout), k in itertools.product(enumerate([0.0, 0.3]), (0, 6, 12)):
        masking = sparse.masking(30, float(exposure.ALPHAS[k]), None)
        found = exposure_of("sparse", masking, Population(30, 10, dropout), samples=10)
        alone = 100 * found.alone_of_sent.formula
        contributors = found.contributors.formula
        assert left.lines[number].get_ydata()[k] == pytest.approx(contributors)
        assert right.lines[number].get_ydata()[k] == pytest.approx(alone)


@pytest.mark.parametrize("ending", outputs.FIGURE.endings)
def test_the_same_figure_gives_the_same_file(tmp_path, trained, monkeypatch, ending):
    run = trained()
    paths = [tmp_path / f"{k}{ending}" for k in range(2)]
    for k, path in enumerate(paths):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(10**9 + 10**6 * k))  # matplotlib's clock
        style.save(accuracy.draw([run]), path)

    assert paths[0].stat().st_size > 1000
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_file_that_cannot_be_written_is_refused_in_a_sentence(tmp_path, trained):
    run = trained()
    with pytest.raises(UsageError, match=r"cannot write .*/a\.h5/x\.png"):
        style.save(accuracy.draw([run]), tmp_path / "a.h5" / "x.png")
    for name in ("x.bmp", "x"):
        with pytest.raises(UsageError, match=r"does not end in .png, .svg or .pdf"):
            style.save(accuracy.draw([run]), tmp_path / name)


def test_nothing_of_pyplot_or_of_global_settings_is_touched(tmp_path, trained):
    before = dict(matplotlib.rcParams.copy())
    style.save(chosen("accuracy", {"style": "talk"}).draw([trained()]), tmp_path / "new" / "A.SVG")

    assert (tmp_path / "new" / "A.SVG").read_text().startswith("<?xml")
    assert dict(matplotlib.rcParams.copy()) == before
    # matplotlib itself may import it, for boxes; a figure must not be kept there.
    assert pyplot.get_fignums() == []
