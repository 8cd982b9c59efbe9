"""Speed-up and parallel efficiency over ranks, nodes, ranks of the server or threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.options.scaling import SCALES
from hpcfl.plots import looks, naming
from hpcfl.plots.style import (
    SECONDS,
    Frame,
    leave_room,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
    wrapped,
)
from hpcfl.results.scaling import Line, Point, Study
from hpcfl.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHARED = "ranks or threads share cores, or may: no efficiency"


@dataclass(frozen=True)
class _Quantity:
    """What a panel shows."""

    name: str
    value: Callable[[Point], float]
    interval: Callable[[Point], Interval] | None = None
    units: Mapping[str, float] | None = None
    share: bool = False  # whether the axis is from 0 on, not logarithmic
    ideal: str = ""  # how it is without any loss: "as x", "1 / x" or "level"


def draw(study: Study, frame: Frame) -> Figure:
    """Return panels of seconds, CPU seconds, speed-up and efficiency of a study.

    A solid line is measured, with 95 % intervals where there are enough rounds, and a dashed one
    modelled. Points whose ranks share cores are crossed out, and have neither speed-up nor
    efficiency; where no point has any, these panels are left out. Grey is what is ideal.
    """
    quantities = _quantities(study)
    figure, axes = new_figure(frame, len(quantities), height=1.8, narrowest=1.6)
    looked = looks.of_lines((line.protocol, line.name) for line in study.lines)
    shown = _called(study.lines, frame.called)
    for one, quantity in zip(axes, quantities, strict=True):
        _draw_panel(one, quantity, study, looked, shown)
    if any(line.modelled for line in study.lines):
        axes[0].plot([], [], color="0.3", linestyle="--", label="modelled, not measured")
    if any(point.oversubscribed is not False for line in study.lines for point in line.points):
        axes[0].plot([], [], color="0.2", marker="x", linestyle="none", label=_SHARED)
    set_title(figure, frame, _title(study))
    legend_below(figure, frame, *axes)
    return figure


def _title(study: Study) -> str:
    points = [point for line in study.lines for point in line.points]
    devices, dims = ({getattr(point, name) for point in points} for name in ("devices", "dim"))
    parts = [study.fixed]
    # A line does not end within one of them.
    parts += [f"N\xa0=\xa0{devices.pop():,}"] if len(devices) == 1 else []
    parts += [f"d\xa0=\xa0{dims.pop():,}"] if len(dims) == 1 else []
    known = any(point.interval.known for point in points)
    parts.append("medians with 95 % intervals" if known else "medians")
    return "; ".join(parts)


def _called(lines: Sequence[Line], called: Mapping[str, str]) -> dict[str, str]:
    """Return what the legend calls the lines."""
    return {
        line.name: line.name.replace(line.protocol, naming.shown(line.run, called), 1)
        for line in lines
    }


def _quantities(study: Study) -> list[_Quantity]:
    weak = study.mode == "weak"
    found = [
        _Quantity(
            "round",
            lambda point: point.seconds,
            lambda point: point.interval,
            SECONDS,
            ideal="level" if weak else "1 / x",
        ),
        _Quantity(
            "CPU of all parties",
            lambda point: point.cpu_seconds,
            units=SECONDS,
            ideal="as x" if weak else "level",
        ),
        _Quantity("speed-up, times", lambda point: point.speed_up, ideal="as x"),
        _Quantity(
            "parallel efficiency",
            lambda point: point.efficiency,
            lambda point: point.efficiency_interval,
            share=True,
            ideal="level",
        ),
    ]
    return found if any(line.base is not None for line in study.lines) else found[:2]


def _draw_panel(
    axes: Axes,
    quantity: _Quantity,
    study: Study,
    looked: Mapping[str, looks.Look],
    shown: Mapping[str, str],
) -> None:
    points = [p for line in study.lines for p in (*line.points, *line.modelled)]
    everywhere = sorted({point.x for point in points})
    unit, name = 1.0, ""
    if quantity.units is not None:
        unit, name = unit_of([quantity.value(p) for p in points], quantity.units)
    for line in study.lines:
        look = looked[line.name]
        _draw_line(axes, quantity, line, look, unit, shown[line.name])
    # The same in all panels: those above have their places written below.
    apart = max(1.1, (everywhere[-1] / everywhere[0]) ** 0.05)
    axes.set(xscale="log", xlabel=SCALES[study.against])
    axes.set_xlim(everywhere[0] / apart, everywhere[-1] * apart)
    axes.set_title(wrapped(axes, f"{quantity.name}, {name}" if name else quantity.name))
    if quantity.share:
        high = max(1.0, axes.dataLim.y1 if np.isfinite(axes.dataLim.y1) else 1.0)
        axes.set_ylim(0, 1.1 * high)
    else:
        axes.set_yscale("log")
        leave_room(axes)
    _draw_ideal(axes, quantity, study, unit)
    spec = axes.get_subplotspec()
    if spec is not None and not spec.is_last_row():
        axes.set_xlabel("")
        axes.tick_params(axis="x", labelbottom=False)
    axes.grid(alpha=0.3)
    readable_ticks(axes, everywhere)


def _draw_line(
    axes: Axes, quantity: _Quantity, line: Line, look: looks.Look, unit: float, name: str
) -> None:
    measured = look.curve(len(line.points)) | {"markevery": 1, "linestyle": "-"}
    across = [point.x for point in line.points]
    up = np.array([quantity.value(point) for point in line.points])
    reach = np.full((2, len(across)), np.nan)
    if quantity.interval is not None:
        ends = [quantity.interval(point) for point in line.points]
        reach = np.abs(np.array([[one.low, one.high] for one in ends]).T - up)
    axes.errorbar(across, up / unit, reach / unit, **measured, capsize=2, elinewidth=0.8)
    axes.plot([], [], label=name, **measured)
    crossed = [
        (point.x, value / unit)
        for point, value in zip(line.points, up, strict=True)
        if point.oversubscribed is not False and np.isfinite(value)
    ]
    if crossed:
        style: dict[str, Any] = {"color": "0.2", "marker": "x", "linestyle": "none", "zorder": 3}
        axes.plot(*zip(*crossed, strict=True), **style)
    if line.modelled:
        beyond = [quantity.value(point) / unit for point in line.modelled]
        if np.isfinite(beyond).any():
            at = [point.x for point in line.modelled]
            axes.plot(at, beyond, color=look.shade, linestyle="--", linewidth=0.8)


def _draw_ideal(axes: Axes, quantity: _Quantity, study: Study, unit: float) -> None:
    """Draw what a line would be without any loss, from the first line's base on."""
    bases = [line.base for line in study.lines if line.base is not None]
    points = [point for line in study.lines for point in (*line.points, *line.modelled)]
    ends = np.array([min(p.x for p in points), max(p.x for p in points)], float)
    if not bases or ends[0] == ends[1]:
        return
    base, level = bases[0], quantity.value(bases[0]) / unit
    power = {"as x": 1, "1 / x": -1, "level": 0}[quantity.ideal]
    axes.plot(
        ends,
        level * (ends / base.x) ** power,
        color="0.85",
        linewidth=2.5,
        zorder=0,
        label="ideal" if len(bases) == 1 else "ideal, from the first line's base",
        scaley=False,
        scalex=False,
    )
