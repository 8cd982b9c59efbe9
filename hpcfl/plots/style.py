"""Common parts of all figures: size, title, legend, ticks and saving."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import MissingPackageError
from hpcfl.system import outputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from hpcfl.plots import PlotOptions
    from hpcfl.results.reader import Run

# Widths of a column and a page's text in inches, narrow enough for ACM, IEEE and USENIX.
WIDTHS = {"column": 3.33, "page": 7.0}
# Approximate width of a letter and height of a line in inches, at 7 points.
_LETTER, _LINE = 0.053, 0.14
# Look of ideal or proportional lines, which are behind all measurements.
GUIDE: dict[str, Any] = {"color": "0.85", "linewidth": 2.5, "zorder": 0, "scaley": False}
_SHEET = Path(__file__).with_name("paper.mplstyle")


@contextmanager
def applied() -> Iterator[None]:
    """Apply the style sheet to matplotlib."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise MissingPackageError("a figure", "matplotlib", "plot") from error
    with style.context(_SHEET):
        yield


def new_figure(
    asked: PlotOptions, panels: int = 1, height: float = 2.5, narrowest: float = 1.6, **more: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and the axes of its panels, row by row.

    A row has as many panels of at least the width `narrowest` as fit, and is `height` high, both in
    inches. Further arguments go to matplotlib's `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    width = WIDTHS[asked.size]
    columns = max(1, min(panels, int(width / narrowest)))
    rows = math.ceil(panels / columns)
    columns = math.ceil(panels / rows)
    figure = Figure(figsize=(width, rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **more).flat)
    for one in axes[panels:]:
        one.remove()
    return figure, axes[:panels]


def finish(figure: Figure, asked: PlotOptions, title: Sequence[str], *axes: Axes) -> None:
    """Put a title above a figure, and the legend of the axes below it."""
    words = "; ".join(filter(None, title)) if asked.title is None else asked.title
    if words:
        figure.suptitle(words, wrap=True)
    entries: dict[str, Any] = {}
    for one in axes:
        for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if not entries:
        return
    width, height = figure.get_size_inches()
    columns = max(1, int(width / (_LETTER * (max(map(len, entries)) + 9))))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
    figure.set_size_inches(width, height + _LINE * (math.ceil(len(entries) / columns) + 1))


def ticks(axis: Axis, unit: str = "") -> None:
    """Give an axis, whose limits are set, ticks such as ``20 ms`` or ``5 kB``."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    axis.set_major_formatter(EngFormatter(unit, sep="\N{NO-BREAK SPACE}"))
    low, high = sorted(axis.get_view_interval())
    if axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def places(axis: Axis, values: Sequence[float]) -> None:
    """Give an axis ticks at the measured places, labelled with whole numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(FixedLocator(sorted(values), nbins=5))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def leave_room(axis: Any) -> None:
    """Let a logarithmic axis span at least a factor of 4: noise must not look like growth."""
    low, high = axis.get_view_interval()
    middle = math.sqrt(low * high)
    axis.axes.set(**{f"{axis.axis_name}lim": (min(low, middle / 2), max(high, 2 * middle))})


def lacking_rounds(run: Run, asked: PlotOptions | None = None) -> str | None:
    """Return the reason why the costs of a run's rounds cannot be drawn, None if they can."""
    return None if run.measured.any() else "has no measured round"


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix; equal figures give equal files."""
    form = path.suffix.lower().removeprefix(".")
    about = {
        "png": {"Software": outputs.MADE_BY},
        "pdf": {"Creator": outputs.MADE_BY, "CreationDate": None},
        "svg": {"Creator": outputs.MADE_BY, "Date": None},
    }[form]
    with outputs.writing(path, outputs.FIGURE) as file, applied():
        figure.savefig(file, format=form, metadata=about)
