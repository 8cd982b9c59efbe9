"""Curves in panels side by side, with one legend for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfl.plots import looks
from hpcfl.plots.style import (
    PLAIN,
    Frame,
    applied,
    legend_below,
    new_figure,
    readable_ticks,
)

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


@applied()
def draw(panels: Sequence[Panel], frame: Frame = PLAIN) -> Figure:
    """Return a figure of panels side by side.

    A point that is None, or no finite number, is left out.
    """
    figure, all_axes = new_figure(frame, len(panels), height=2.1)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    for axes, panel in zip(all_axes, panels, strict=True):
        for name, (across, up) in panel.curves.items():
            points = [
                (x, y)
                for x, y in zip(across, up, strict=True)
                if y is not None and math.isfinite(y)
            ]
            # A name looks the same in all panels.
            look = looks.numbered(names.index(name)).curve(len(points))
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, **look)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.across)
        axes.set_ylabel(panel.up)
        axes.grid(alpha=0.3)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
        readable_ticks(axes)
    legend_below(figure, Frame(), *all_axes)
    return figure
