"""Which device has how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots.style import PLAIN, Frame, font_scale, new_figure, readable_ticks, set_title
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Inches of a cell, as long as the figure may grow.
_CELL = 0.24
_HIGHEST = 6.5
# In units of the size of a label's font: smaller numbers cannot be read, larger ones look crude.
_FONT_SIZES = (0.85, 1.0)
# A digit is about this much as wide as its font is high.
_DIGIT = 0.64


def lacking(run: Run) -> str | None:
    """Return in words why a run's partition cannot be drawn, None if it can."""
    if run.partition is None:
        return "holds no partition: hpcfl train writes it, unless the algorithm is private"
    return None if run.partition.size else "has a partition without classes"


def draw(runs: Sequence[Run], frame: Frame = PLAIN) -> Figure:
    """Return a map of a training run's samples: devices across, classes up, numbers as colours.

    The numbers are also written into the cells where they can be read. Several runs are a
    UsageError.
    """
    if len(runs) > 1:
        raise UsageError(
            f"a figure shows the partition of one run and there are {len(runs)}: name one file"
        )
    (run,) = runs
    table = np.asarray(run.partition).T
    classes, devices = table.shape
    height = 0.7 + min(_HIGHEST, max(1.2, _CELL * classes))
    figure, (axes,) = new_figure(frame, height=height)

    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    blues = ListedColormap(colormaps["Blues"](np.linspace(0.12, 1, 256)))
    image = axes.imshow(
        table,
        origin="lower",
        aspect="auto",
        cmap=blues.with_extremes(under="white"),
        # No sample at all is white: a single one must not look like it.
        vmin=1,
        vmax=max(2, int(table.max())),
        # Blurred only where there are more devices than pixels.
        interpolation="nearest" if devices <= 2000 else "auto",
    )
    axes.set_xlabel("device")
    axes.set_ylabel("class")
    for edge in axes.spines.values():
        edge.set_visible(False)
    set_title(figure, frame, _title(run, int(table.sum())))
    whole = MaxNLocator("auto", integer=True)
    # 0.15 inches wide in every figure.
    wide, high = figure.get_size_inches()
    bar = figure.colorbar(
        image, ax=axes, pad=0.01, fraction=0.2 / wide, aspect=(high - 0.7) / 0.15, ticks=whole
    )
    bar.set_label("samples (white: none)")
    readable_ticks(axes, whole="xy")
    figure.draw_without_rendering()  # which lays it out, so that the cells have their size
    box = axes.get_window_extent()
    points = 72 / figure.dpi
    _write_numbers(axes, image, table, points * box.width / devices, points * box.height / classes)
    return figure


def _title(run: Run, samples: int) -> str:
    settings = [run.config.get(name) for name in ("dataset", "partition")]
    devices = f"{run.devices:,} device{'s' if run.devices != 1 else ''}"
    counted = f"{samples:,} samples on {devices}"
    known = ", ".join(str(value) for value in settings if value is not None)
    return f"{known}: {counted}" if known else counted


def _write_numbers(
    axes: Axes, image: AxesImage, table: NDArray[np.int64], width: float, height: float
) -> None:
    """Write the numbers above 0 into cells of so many points, if they are then legible."""
    digits = len(str(table.max()))
    least, most = (8 * font_scale() * size for size in _FONT_SIZES)
    size = min(most, 0.7 * height, 0.9 * width / (_DIGIT * digits))
    if size < least:
        return
    colours = image.to_rgba(table)
    for row, column in np.argwhere(table).tolist():
        red, green, blue, _ = colours[row, column]
        # On a darker ground than this, white has more contrast than black.
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.42
        axes.text(
            *(column, row, f"{table[row, column]}"),
            ha="center",
            va="center",
            size=size,
            color="white" if dark else "black",
        )
