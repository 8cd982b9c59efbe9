"""Speed-up and parallel efficiency over ranks, nodes, ranks of the server or threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hpcfl.options.report import SCALES
from hpcfl.plots import PlotOptions, looks
from hpcfl.plots.style import GUIDE, finish, leave_room, new_figure, places, ticks
from hpcfl.results.scaling import Line, Point, Study
from hpcfl.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CROSS: dict[str, Any] = {"color": "0.2", "marker": "x", "linestyle": "none", "zorder": 3}


class _Quantity(NamedTuple):
    """The quantity of a panel."""

    name: str
    value: Callable[[Point], float]
    interval: Callable[[Point], Interval] | None
    unit: str
    power: int  # ideal growth, as a power of the resources


def draw(study: Study, asked: PlotOptions) -> Figure:
    """Return panels of seconds, CPU seconds, speed-up and efficiency of a study.

    A point has its 95 % interval if there are enough rounds. Points whose ranks share cores are
    crossed out, and have neither speed-up nor efficiency. If no point has them, their panels are
    left out. Grey lines show the ideal.
    """
    weak = study.mode == "weak"
    quantities = [
        _Quantity("round", lambda p: p.seconds, lambda p: p.interval, "s", 0 if weak else -1),
        _Quantity("CPU of all parties", lambda p: p.cpu_seconds, None, "s", 1 if weak else 0),
        _Quantity("speed-up, times", lambda p: p.speed_up, None, "", 1),
        _Quantity(
            "parallel efficiency", lambda p: p.efficiency, lambda p: p.efficiency_interval, "", 0
        ),
    ]
    if all(line.base is None for line in study.lines):
        quantities = quantities[:2]
    looked = looks.of_lines((line.protocol, line.name) for line in study.lines)
    figure, axes = new_figure(asked, len(quantities), height=1.8)
    for one, quantity in zip(axes, quantities, strict=True):
        for line in study.lines:
            _draw_line(one, quantity, line, looked[line.name])
        _finish_panel(one, quantity, study)
    points = [point for line in study.lines for point in line.points]
    if any(point.oversubscribed is not False for point in points):
        words = "ranks or threads share cores, or may: no efficiency"
        axes[0].plot([], [], **_CROSS, label=words)
    title = [study.fixed]
    for letter, name in (("N", "devices"), ("d", "dim")):
        values = {getattr(point, name) for point in points}
        title += [f"{letter} = {values.pop():,}"] if len(values) == 1 else []
    finish(figure, asked, [*title, "medians, 95 % intervals"], *axes)
    return figure


def _draw_line(axes: Axes, quantity: _Quantity, line: Line, look: looks.Look) -> None:
    measured = look.curve()
    across = [point.x for point in line.points]
    up = np.array([quantity.value(point) for point in line.points])
    reach = None
    if quantity.interval is not None:
        ends = [quantity.interval(point) for point in line.points]
        reach = np.abs(np.array([[one.low, one.high] for one in ends]).T - up)
    axes.errorbar(across, up, reach, **measured, capsize=2, elinewidth=0.8)
    axes.plot([], [], label=line.name, **measured)
    crossed = [
        (point.x, value)
        for point, value in zip(line.points, up, strict=True)
        if point.oversubscribed is not False and np.isfinite(value)
    ]
    if crossed:
        axes.plot(*zip(*crossed, strict=True), **_CROSS)


def _finish_panel(axes: Axes, quantity: _Quantity, study: Study) -> None:
    """Scale the axes of a panel, and draw the ideal line through the first base."""
    everywhere = sorted({point.x for line in study.lines for point in line.points})
    bases = [line.base for line in study.lines if line.base is not None]
    axes.set(xscale="log", xlabel=SCALES[study.against], title=quantity.name)
    if bases and len(everywhere) > 1:
        base = bases[0]
        ends = np.array([everywhere[0], everywhere[-1]], float)
        level = quantity.value(base) * (ends / base.x) ** quantity.power
        words = "ideal" if len(bases) == 1 else "ideal, from the first line's base"
        axes.plot(ends, level, label=words, **GUIDE)
    if quantity.name == "parallel efficiency":
        axes.set_ylim(bottom=0, top=max(1.1, axes.get_ylim()[1]))
    else:
        axes.set_yscale("log")
        leave_room(axes.yaxis)
    # All panels have the same limits.
    apart = max(1.1, (everywhere[-1] / everywhere[0]) ** 0.05)
    axes.set_xlim(everywhere[0] / apart, everywhere[-1] * apart)
    places(axes.xaxis, everywhere)
    ticks(axes.yaxis, quantity.unit)
