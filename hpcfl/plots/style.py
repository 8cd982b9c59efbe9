"""What all figures have in common: sizes, fonts, legends, and how they are saved."""

from __future__ import annotations

import io
import logging
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import MissingPackageError, UsageError
from hpcfl.system import outputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hpcfl.results.reader import Run

# Of ticks.
_TICKS = {"size": 2.4, "width": 0.6}
# Inches: a column and the text of a page, narrow enough for ACM, IEEE and USENIX.
WIDTHS = {"column": 3.33, "page": 7.0}
# Settings of matplotlib. Fonts are embedded as TrueType: publishers refuse Type 3. Sizes are in
# points, and all others follow from the size of the font.
_PAPER = {
    "figure.figsize": (WIDTHS["page"], 4.0),
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "figure.titlesize": 8.0,
    "figure.labelsize": 8.0,
    "legend.fontsize": 7.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.4,
    **{f"{axis}tick.major.{what}": size for axis in "xy" for what, size in _TICKS.items()},
    **{f"{axis}tick.minor.{what}": size / 1.5 for axis in "xy" for what, size in _TICKS.items()},
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "savefig.dpi": 300,
    # What files and users say is text, whatever signs are in it.
    "text.parse_math": False,
}
_FIXED = ("figure.figsize", "pdf.fonttype", "ps.fonttype", "savefig.dpi")
_LARGER = 1.75
_TALK = {
    name: value * _LARGER
    for name, value in _PAPER.items()
    if isinstance(value, float) and name not in _FIXED
} | {"figure.figsize": (12.0, 6.75), "savefig.dpi": 160}
STYLES = {"paper": [_PAPER], "talk": [_PAPER, _TALK]}
# A letter of this many times the size of the font is as wide as the mean one.
_LETTER = 0.53


@dataclass(frozen=True)
class Frame:
    """What all kinds of figures are given."""

    width: float | None = None  # inches; None for that of the style
    height: float | None = None  # inches; None for what there is to draw
    title: str | None = None  # None for the kind's own
    called: Mapping[str, str] = field(default_factory=dict)  # what to call protocols instead
    pool: bool = True  # whether repeats are drawn as one, where the kind has a way to do so


PLAIN = Frame()


@contextmanager
def applied(name: str = "paper") -> Iterator[None]:
    """Let matplotlib draw in a style for a while; it can also decorate a function.

    It is ``paper``, ``talk``, a style that comes with matplotlib, or a file of one, whose settings
    are put on top of ``paper``. A UsageError says that there is none.
    """
    try:
        from matplotlib import rc_params_from_file, style
    except ImportError as error:
        raise MissingPackageError("a figure", "matplotlib", "plot") from error
    settings: list[Any] = STYLES.get(name, [_PAPER])
    if name in style.library:
        settings = [*settings, name]
    elif name not in STYLES:
        try:
            # Only a file: matplotlib itself would also read addresses of pages.
            with _unlogged() as complaints:
                own = rc_params_from_file(
                    Path(name).resolve(strict=True), use_default_template=False
                )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"there is no style {name!r} ({error}): give {' or '.join(STYLES)}, a matplotlib "
                "style file, or the name of a style of matplotlib"
            ) from None
        if not own:
            raise UsageError(f"{name} has no settings of matplotlib: give a style file")
        for complaint in complaints:
            warnings.warn(complaint, stacklevel=2)
        settings = [*settings, own]
    with style.context(settings):
        yield


@contextmanager
def _unlogged() -> Iterator[list[str]]:
    """Collect the first lines of what matplotlib logs of a style file, in place of printing it."""
    found: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        found.append(record.getMessage().strip().partition("\n")[0])
        return False

    log = logging.getLogger("matplotlib")
    log.addFilter(keep)
    try:
        yield found
    finally:
        log.removeFilter(keep)


def new_figure(
    frame: Frame, panels: int = 1, height: float = 2.5, narrowest: float = 2.2, **more: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and the axes of its panels, row by row.

    There are as many panels beside each other as are not narrower than `narrowest`, in rows of some
    `height`: inches, for a font of 8 points. Further arguments go to matplotlib's
    `Figure.subplots`. Without matplotlib it is a UsageError.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("a figure", "matplotlib", "plot") from error
    width = frame.width or rcParams["figure.figsize"][0]
    most = max(1, min(panels, int(width / (narrowest * font_scale()))))
    # Rows that are all full, if that takes not many more of them.
    full = [count for count in range(most, most // 2, -1) if panels % count == 0]
    columns = full[0] if full else math.ceil(panels / math.ceil(panels / most))
    rows = math.ceil(panels / columns)
    size = width, frame.height or rows * height * font_scale()
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **more).flat)
    for one in axes:
        # Kept for ticks that are made only when the figure is saved.
        one.tick_params(axis="x", labelsize=rcParams["xtick.labelsize"])
        one.tick_params(axis="y", labelsize=rcParams["ytick.labelsize"])
    for one in axes[panels:]:
        one.remove()
    return figure, axes[:panels]


def font_scale() -> float:
    """Return how large the font of the style is, in units of 8 points."""
    from matplotlib import rcParams

    return float(rcParams["font.size"]) / 8


def letters_in(inches: float) -> int:
    """Return how many letters of the style's font fit into a line."""
    return max(8, int(inches * 72 / (8 * font_scale() * _LETTER)))


def set_title(figure: Figure, frame: Frame, own: str) -> None:
    """Put a title above a figure: what was asked for, else its own; none if that is empty."""
    words = own if frame.title is None else frame.title
    if not words:
        return
    figure.suptitle(textwrap.fill(words, letters_in(0.9 * figure.get_figwidth())))


def legend_below(figure: Figure, frame: Frame, *axes: Axes, sample: float = 3.2) -> None:
    """Put the legend of axes below them, where it hides no data.

    The sample beside a name, in units of the font's size, is long enough to show dots and dashes.
    The figure is made so much higher, unless it was asked to have some height.
    """
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    entries: dict[str, Any] = {}
    for one in axes:
        for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
            # Of a line with intervals, the line.
            entries.setdefault(name, handle[0] if isinstance(handle, tuple) else handle)
    if not entries:
        return
    width, height = figure.get_size_inches()
    beside = (sample + 2) * rcParams["font.size"] / 72
    names = [wrap(name, letters_in(width - beside)) for name in entries]
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(min(len(names), 6), 0, -1):
        legend = figure.legend(
            list(entries.values()),
            names,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            handlelength=sample,
            columnspacing=1.2,
        )
        box = legend.get_window_extent(renderer)
        if box.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    if frame.height is None:
        figure.set_size_inches(width, height + box.height / figure.dpi)


def inches_of(letters: int) -> float:
    """Return how long a line of so many letters is at most; see `letters_in`."""
    return letters * 8 * font_scale() * _LETTER / 72


def wrapped(axes: Axes, words: str, beside: float = 0.0) -> str:
    """Break words into lines that are no longer than the axes are wide.

    So many inches `beside` all axes are taken by something else, such as the labels of rows.
    """
    spec = axes.get_subplotspec()
    assert spec is not None
    width = (axes.figure.bbox.width / axes.figure.dpi - beside) / spec.get_gridspec().ncols
    return textwrap.fill(words, letters_in(0.85 * width), break_on_hyphens=False)


def readable_ticks(axes: Axes, places: Sequence[float] | None = None, whole: str = "") -> None:
    """Give axes ticks that are plain numbers; see :func:`hpcfl.plots.ticks.plain`."""
    from hpcfl.plots import ticks

    ticks.plain(axes, places, whole)


def unit_of(values: Any, units: Mapping[str, float]) -> tuple[float, str]:
    """Return the unit in which numbers are neither large nor small: how much it is, and its name.

    It is the largest of the units in which the middle of the numbers, by size, is 1 or more.
    """
    known = np.asarray(values, float)
    known = known[np.isfinite(known) & (known > 0)]
    middle = float(np.sqrt(known.min() * known.max())) if known.size else 0.0
    fitting = [name for name, one in units.items() if middle >= one]
    name = fitting[-1] if fitting else next(iter(units))
    return units[name], name


BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
SECONDS = {"ms": 1e-3, "s": 1.0}


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
    return None if run.validated.any() else "has no finished round"


def from_zero(axes: Axes, log_x: bool) -> None:
    """Let what is across begin at 0, or be logarithmic."""
    if log_x:
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, 1.03 * axes.dataLim.x1 if axes.dataLim.x1 > 0 else None)


def leave_room(axes: Axes, x: bool = False, y: bool = True) -> None:
    """Let logarithmic axes span a factor of 4 at least: noise is not to look like growth."""
    for wanted, (low, high), change in (
        (x, axes.get_xlim(), axes.set_xlim),
        (y, axes.get_ylim(), axes.set_ylim),
    ):
        if wanted and 0 < low < high:
            middle = math.sqrt(low * high)
            change(min(low, middle / 2), max(high, 2 * middle))


def label_first_column(axes: Axes, words: str) -> None:
    """Say what is up, beside the first of panels that share it."""
    spec = axes.get_subplotspec()
    if spec is None or spec.is_first_col():
        axes.set_ylabel(words)


def lacking_rounds(run: Run, **_: object) -> str | None:
    """Return in words why what a run's rounds cost cannot be drawn, None if it can."""
    return None if run.measured.any() else "has no measured round"


def save(figure: Figure, path: Path, style: str = "paper") -> None:
    """Write a figure that was drawn in a style; the same figure gives the same file."""
    form = path.suffix.lower().removeprefix(".")
    with outputs.writing(path, outputs.FIGURE) as file:
        if form == "svg":
            file.write(svg(figure, style).encode())
            return
        about: dict[str, str | None] = {"Software": outputs.MADE_BY}
        if form == "pdf":
            about = {"CreationDate": None, "Creator": outputs.MADE_BY}
        with applied(style):
            figure.savefig(file, format=form, metadata=about)


def svg(figure: Figure, style: str = "paper") -> str:
    """Return a figure as a document of SVG; the same figure gives the same text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with applied(style), rc_context({"svg.hashsalt": "hpcfl", "svg.fonttype": "none"}):
        about = {"Date": None, "Creator": outputs.MADE_BY}
        figure.savefig(text, format="svg", metadata=about)
    return text.getvalue()
