"""Curves in panels side by side, with one legend for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcfl.algorithms.aggregation import PROTOCOLS
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

# Curves of more points have no marker on each of them.
_MOST_HOLLOW = 20


@dataclass(frozen=True)
class Panel:
    """Curves over common axes."""

    title: str
    across: str  # what is along the axis, with its unit
    up: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]  # points by names of curves
    log_x: bool = False
    log_y: bool = False
    # Of some curves: the ends of each point's interval, None for a point without one.
    intervals: Mapping[str, Sequence[tuple[float, float] | None]] = field(default_factory=dict)
    # Of some curves: which points are hollow, such as those that are not measured.
    hollow: Mapping[str, Sequence[bool]] = field(default_factory=dict)


@applied()
def draw(panels: Sequence[Panel], frame: Frame = PLAIN) -> Figure:
    """Return a figure of panels side by side; protocols look as in all other figures.

    A point that is None, or no finite number, is left out.
    """
    figure, all_axes = new_figure(frame, len(panels), height=2.1)
    looked = _looks(list(dict.fromkeys(name for panel in panels for name in panel.curves)))
    for axes, panel in zip(all_axes, panels, strict=True):
        for name, (across, up) in panel.curves.items():
            shown = [number for number, y in enumerate(up) if y is not None and math.isfinite(y)]
            x, y = [across[number] for number in shown], [up[number] for number in shown]
            look = looked[name].curve(len(shown))
            (line,) = axes.plot(x, y, label=name, **look)
            hollow = panel.hollow.get(name)
            if hollow is not None and len(shown) <= _MOST_HOLLOW:
                empty = [k for k, number in enumerate(shown) if hollow[number]]
                line.set_markevery([k for k in range(len(shown)) if k not in empty])
                points = look | {"linestyle": "none", "markevery": None, "fillstyle": "none"}
                axes.plot([x[k] for k in empty], [y[k] for k in empty], **points)
            for number in shown if name in panel.intervals else ():
                ends = panel.intervals[name][number]
                if ends is not None:
                    axes.vlines(across[number], *ends, color=line.get_color(), linewidth=0.8)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.across)
        axes.set_ylabel(panel.up)
        axes.grid(alpha=0.3)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
        readable_ticks(axes)
    legend_below(figure, frame, *all_axes)
    return figure


def _looks(names: Sequence[str]) -> Mapping[str, looks.Look]:
    """Return what curves look like, the same in all panels."""
    if set(names) <= PROTOCOLS.keys():
        return looks.of_protocols(names)
    return {name: looks.numbered(number) for number, name in enumerate(names)}
