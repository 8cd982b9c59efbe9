"""Curves in panels side by side, with one legend for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfl.plots.style import legend_below, line_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """Curves over common axes."""

    title: str
    across: str  # what is along the axis, with its unit
    up: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]  # points by names of curves
    log_x: bool = False
    log_y: bool = False


def draw(panels: Sequence[Panel]) -> Figure:
    """Return a figure of panels, three or four in a row.

    A point that is None, or no finite number, is left out.
    """
    full = (count for count in (3, 4, 2) if len(panels) % count == 0)
    columns = next(full, min(3, len(panels)))
    rows = math.ceil(len(panels) / columns)
    figure, all_axes = new_figure(max(6.4, 3.4 * columns), 2.8 * rows, columns, rows)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    for axes, panel in zip(all_axes, panels, strict=False):
        for name, (across, up) in panel.curves.items():
            points = [
                (x, y)
                for x, y in zip(across, up, strict=True)
                if y is not None and math.isfinite(y)
            ]
            # A name looks the same in all panels.
            look = line_style(names.index(name), len(points))
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, **look)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.across, fontsize=8)
        axes.set_ylabel(panel.up, fontsize=8)
        axes.tick_params(labelsize=8, which="both")
        axes.grid(alpha=0.3)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    for number, name in enumerate(names):
        if name not in panels[0].curves:
            # The legend is that of the first panel: it names the curves of all.
            all_axes[0].plot([], [], label=name, **line_style(number, 0))
    legend_below(figure, all_axes[0])
    return figure
