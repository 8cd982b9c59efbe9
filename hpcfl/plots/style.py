"""What all figures have in common: sizes, colours, legends, and how they are saved."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import MissingPackageError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hpcfl.results.reader import Run

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's palette, without yellow, which is pale on paper: told apart by colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Lines differ in these too, so that they are told apart in black and white. Their numbers have no
# common divisor, so that 28 lines all look different.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
# So many lines all look different without colour.
MOST_LINES = len(MARKERS) * len(DASHES)
# For areas, as markers for lines.
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo")
# Inches: a letter of a legend of this many points, and the sample of a line beside it.
_LEGEND_POINTS = 8
_LETTER, _SAMPLE, _ROW = 0.068, 0.8, 0.19


def new_figure(
    width: float = 6.4, height: float = 4.0, columns: int = 1, rows: int = 1, **more: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of so many inches, and its axes, row by row.

    Further arguments go to matplotlib's `Figure.subplots`. Without matplotlib it is a UsageError.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("a figure", "matplotlib", "plot") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, list(axes.flat)


def line_style(number: int, points: int) -> dict[str, Any]:
    """Return how the line with this number looks, with about ten markers on it."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        # Markers of neighbouring lines lie side by side where there are enough points.
        "markevery": (number % 3 if points > 20 else 0, max(1, points // 10)),
        "markersize": 4,
        "linewidth": 1.4,
    }


def area_style(number: int) -> dict[str, Any]:
    """Return how the area with this number looks."""
    return {
        "facecolor": COLOURS[number % len(COLOURS)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.6,
    }


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend below the axes, where it hides no data, and make the figure so much higher."""
    handles, names = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    letters = int((width - _SAMPLE) / _LETTER)
    wrapped = [wrap(name, letters) for name in names]
    entry = _SAMPLE + _LETTER * max(min(len(name), letters) for name in names)
    columns = max(1, min(len(names), int(width / entry)))
    lines = np.array_split([name.count("\n") + 1 for name in wrapped], columns)
    figure.set_size_inches(width, height + 0.1 + _ROW * max(sum(column) for column in lines))
    figure.legend(
        handles,
        wrapped,
        loc="outside lower center",
        ncols=columns,
        fontsize=_LEGEND_POINTS,
        handlelength=4,  # long enough to show dots and dashes
    )


def wrap(name: str, letters: int) -> str:
    """Break a name like ``sparse, N = 100, seed 3`` at its commas, where it is too long."""
    parts = name.replace(" ", "\xa0").replace(",\xa0", ", ")
    return textwrap.fill(parts, letters, break_on_hyphens=False).replace("\xa0", " ")


def lacking_training(run: Run, names: Sequence[str]) -> str | None:
    """Return in words why these figures of training cannot be drawn, None if they can."""
    if not run.training:
        return "has no training: hpcfl train writes it"
    for name in names:
        if name not in run.training:
            return f"does not record {name}"
        if run.training[name].shape != (run.rounds,):
            return f"is damaged: its {name} has the shape {run.training[name].shape}"
    return None if run.validated.any() else "has no finished round"


def check_lines(count: int, what: str = "lines to draw", each: int = 1) -> None:
    """Refuse more lines than can be told apart, `each` for one of what is counted."""
    if count * each > MOST_LINES:
        raise UsageError(
            f"there are {count} {what} and {MOST_LINES // each} can be told apart: name fewer files"
        )


def from_zero(axes: Axes, log_x: bool) -> None:
    """Let what is across begin at 0, or be logarithmic."""
    if log_x:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)


def lacking_rounds(run: Run, **_: object) -> str | None:
    """Return in words why what a run's rounds cost cannot be drawn, None if it can."""
    return None if run.measured.any() else "has no measured round"


def tick_step(count: int) -> int:
    """Return the distance of ticks, of 1, 2, 5, 10, 20, ..., that gives 25 ticks at most."""
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return next(step for step in steps if count <= 25 * step)


def check_path(path: Path) -> None:
    """Refuse a name that says no known format."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"{path} does not end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}: "
            "the ending says the format of the figure"
        )


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same file."""
    check_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".svg":
            path.write_text(svg(figure), encoding="utf-8")
        else:
            undated = {"CreationDate": None} if path.suffix.lower() == ".pdf" else None
            figure.savefig(path, dpi=200, metadata=undated)
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror or error}): choose another place"
        ) from None


def svg(figure: Figure) -> str:
    """Return a figure as a document of SVG; the same figure gives the same text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "hpcfl", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
