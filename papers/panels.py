"""Curves in panels side by side, with one legend for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# Curves with more points have no markers.
_MOST_MARKED = 20


@dataclass(frozen=True)
class Panel:
    """Curves over common axes."""

    title: str
    across: str  # label of the horizontal axis, with its unit
    up: str  # label of the vertical axis
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]  # points, by the curve's name
    log_x: bool = False
    log_y: bool = False
    # For some curves: the ends of each point's interval.
    intervals: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    # For some curves: which points are hollow because they are not measured.
    hollow: Mapping[str, Sequence[bool]] = field(default_factory=dict)


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side into a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (3.4 * len(panels), 3.6)
    figure, found = pyplot.subplots(1, len(panels), squeeze=False, figsize=size, layout="tight")
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    for axes, panel in zip(found[0], panels, strict=True):
        for name, (across, up) in panel.curves.items():
            x, y = (np.array(values, float) for values in (across, up))
            marker = "os^vDPX*<>"[names.index(name) % 10]
            color = f"C{names.index(name) % 10}"
            few = marker if len(x) <= _MOST_MARKED else ""
            axes.plot(x, y, color=color, label=name, marker=few, markersize=4, linewidth=1)
            hollow = np.array(panel.hollow.get(name, [False] * len(x)))
            axes.plot(x[hollow], y[hollow], marker, color=color, markersize=3, mfc="white")
            for place, ends in zip(across, panel.intervals.get(name, ()), strict=False):
                axes.vlines(place, *ends, color=color, linewidth=0.8)
        axes.set(title=panel.title, xlabel=panel.across, ylabel=panel.up)
        axes.set_xscale("log" if panel.log_x else "linear")
        axes.set_yscale("log" if panel.log_y else "linear")
        axes.grid(alpha=0.3)
    handles = {
        label: handle
        for axes in found[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="upper center", ncols=4, bbox_to_anchor=(0.5, 0))
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
