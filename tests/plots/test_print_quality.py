"""Figures can go into a paper: fonts, sizes, and no text over other text or over data."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from page_runs import write_run
from run_files import new_writer

from hpcfl.algorithms.aggregation import find
from hpcfl.errors import UsageError
from hpcfl.options.advise import AdviseOptions
from hpcfl.plots import KINDS, chosen, exposure, framed, queries, style, winners
from hpcfl.results import load
from hpcfl.results.record import RoundRecord

OF_ONE_RUN = ("partition", "timeline")
CASES = [
    (kind, count, size)
    for kind in KINDS
    for count in ((1,) if kind in OF_ONE_RUN else (1, 12))
    for size in ("column", "page")
]
RANKS = 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function that makes some runs for a kind of figure."""
    folder = tmp_path_factory.mktemp("runs")

    def make(kind, count):
        options = {"dropout": 0.0}
        if kind in ("accuracy", "epsilon", "partition"):
            options |= {"training": True, "dataset": "digits", "epsilon_delta": 1e-5}
            options |= {"algorithm": "cdp"} if kind == "epsilon" else {}
        names, sizes = ("secagg", "sparse", "fedavg"), (8, 10, 12, 100)
        if kind == "tradeoff":  # with a panel for every number of devices
            names, sizes = ("secagg", "sparse", "fedavg", "prf", "common", "lightsecagg"), (8, 100)
        found = []
        for name, n in itertools.islice(itertools.product(names, sizes), count):
            # With a name of its own, that is no repeat.
            file = folder / f"{kind}-{name}-{n}.h5"
            if kind == "epsilon":
                options["learning_rate"] = 0.1 + len(found) / 100
            found.append(load(file if file.exists() else write_run(file, name, n, 1000, **options)))
        if kind == "partition":
            table = np.arange(1, 10 * found[0].devices + 1).reshape(found[0].devices, 10)
            return [replace(run, partition=table) for run in found]
        return [timed(folder / "timed.h5")] if kind == "timeline" else found

    return make


def timed(path):
    if not path.exists():
        with new_writer(path, rounds=1, ranks=RANKS) as writer:
            record = RoundRecord.empty(3, 4)
            record.validated = True
            record.begin_seconds = np.arange(3.0)[:, None] * np.ones((3, RANKS))
            record.end_seconds = record.begin_seconds + 0.9
            for name in ("computing", "mpi", "waiting"):
                setattr(record, f"{name}_seconds", np.full((3, RANKS), 0.3))
            record.skew_seconds, record.clock_uncertainty_seconds = 0.0, 0.0
            record.clock_offset_seconds = np.zeros(RANKS)
            writer.append(record)
    return load(path)


def laid_out(figure):
    """Return a figure's renderer, with all texts where they will be."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    return renderer


def tick_labels(axis):
    """Return the labels of an axis that are seen."""
    low, high = sorted(axis.get_view_interval())
    reach = 1e-9 * (high - low)
    return [
        tick.label1
        for tick in axis.get_major_ticks()
        if tick.label1.get_visible()
        and tick.label1.get_text()
        and low - reach <= tick.get_loc() <= high + reach
    ]


def words_of(figure):
    """Return all other texts that are seen, those of ticks left out."""
    found = [figure._suptitle] if figure.get_suptitle() else []
    for axes in figure.axes:
        found += [axes.title, axes.xaxis.label, axes.yaxis.label]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    return [text for text in found if text.get_text().strip()]


def overlapping(texts, renderer):
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    return [
        (one, other)
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        # Boxes that touch by a part of a pixel do not overlap.
        if a.x0 + 0.5 < b.x1 and b.x0 + 0.5 < a.x1 and a.y0 + 0.5 < b.y1 and b.y0 + 0.5 < a.y1
    ]


def test_texts_are_read_and_cover_neither_each_other_nor_data(runs):
    for kind, count, size in CASES:
        assert_readable(chosen(kind, {"size": size}).draw(runs(kind, count)), kind)


def assert_inside(figure, texts, renderer):
    # The layout is solved to a pixel, of a hundred an inch.
    for text in texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= figure.bbox.y1 + 1, text


def assert_readable(figure, kind):
    renderer = laid_out(figure)
    ticks = [tick_labels(axis) for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    every = [*words_of(figure), *(label for labels in ticks for label in labels)]

    assert overlapping(every, renderer) == []
    assert_inside(figure, every, renderer)
    for text in every:
        assert text.get_size() >= 7, text
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert all(box.y1 <= one.get_window_extent(renderer).y0 for one in figure.axes)
    assert not any(one.get_legend() for one in figure.axes)
    for labels in ticks:
        for label in labels:
            assert not re.search(r"e[+-]|\$|\^", label.get_text()), label
    if kind not in OF_ONE_RUN:
        assert any(len(labels) > 1 for labels in ticks)


def test_fonts_are_embedded_as_truetype_and_sizes_are_those_asked_for(runs, tmp_path):
    drawing = chosen("scaling", {"size": "column"})
    style.save(drawing.draw(runs("scaling", 3)), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()

    assert b"/CIDFontType2" in content
    assert b"/Type3" not in content
    (width,) = re.findall(rb"/MediaBox \[ 0 0 ([0-9.]+) ", content)
    assert float(width) == pytest.approx(3.33 * 72)
    exact = chosen("scaling", {"size": "6x4.5"}).draw(runs("scaling", 12))
    assert list(exact.get_size_inches()) == [6, 4.5]
    assert chosen("scaling", {}).draw(runs("scaling", 12)).get_figwidth() == 7


def test_figures_of_formulas_have_the_size_that_is_asked_for():
    frame = framed("6x4")
    bounds = queries.draw(np.geomspace(1, 9, 5), [1], np.ones((1, 5)), [None], "title", 2, frame)
    shares = exposure.draw_over_alpha(find("cohort"), 30, 10, [0.0], frame)
    best = winners.draw([["sparse"] * 2] * 2, [10, 100], [5, 50], AdviseOptions(devices=9), frame)

    for figure in (bounds, shares, best):
        assert list(figure.get_size_inches()) == [6, 4]


def test_a_talk_has_larger_fonts_and_a_style_file_has_its_own(runs, tmp_path):
    own = tmp_path / "own.mplstyle"
    own.write_text("font.family: serif\nfont.size: 9\naxes.labelsize: 9\nfigure.figsize: 5, 3\n")
    before = dict(rcParams.copy())

    def label(**options):
        figure = chosen("scaling", options).draw(runs("scaling", 1))
        return figure, figure.axes[0].xaxis.label

    (talk, large), (styled, serif) = label(style="talk"), label(style=str(own))
    assert (talk.get_figwidth(), large.get_size()) == (12, 14)
    assert (styled.get_figwidth(), serif.get_family()) == (5, ["serif"])
    assert label(style="ggplot")[0].axes
    assert dict(rcParams.copy()) == before


def test_signs_of_mathematics_in_names_are_letters(runs):
    options = {"title": r"$\nothing$", "label": [r"secagg=$\frac$"]}
    figure = chosen("scaling", options).draw(runs("scaling", 1))
    laid_out(figure)

    (legend,) = figure.legends
    assert legend.get_texts()[0].get_text() == r"$\frac$"


def test_an_address_is_no_style_file():
    with (
        pytest.raises(UsageError, match="there is no style"),
        style.applied("https://example.org/a"),
    ):
        pass
