"""How the seconds of a round spread over devices and rounds, devices and server apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots import naming
from hpcfl.plots.style import (
    COLOURS,
    check_lines,
    from_zero,
    lacking_rounds,
    legend_below,
    line_style,
    new_figure,
    tick_step,
)
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More boxes are too thin to be read.
MOST_BOXES = 128

lacking = lacking_rounds


def draw(
    runs: Sequence[Run], style: str = "ecdf", clock: str = "cpu", log_x: bool = False
) -> Figure:
    """Return two panels, the devices' seconds in whole rounds and the server's.

    ``ecdf``: a line for each run, the share of values that are at most so large, over all devices
    that survived and all measured rounds. ``box``: for one run a box for each device, over the
    rounds that it survived; for several runs a box for each. A box is from the first to the third
    quartile with a line at the median; whiskers reach to the smallest and largest value, so that
    nothing is left out.
    """
    runs = naming.in_order(runs)
    labels = naming.labels(runs, ("dim", *naming.TASK, *naming.TOLD_APART))
    axis = f"{'CPU' if clock == 'cpu' else 'elapsed'} seconds in a round, s"
    if style == "ecdf":
        check_lines(len(runs))
        figure, axes = new_figure(9.6, 3.6, columns=2, sharey=True)
    elif len(runs) == 1:
        return _draw_one(runs[0], labels[0], clock, axis, log_x)
    else:
        _check_boxes(len(runs), "runs", "name fewer")
        figure, axes = new_figure(9.6, 1.2 + 0.3 * len(runs), columns=2, sharey=True)
    some = any(run.in_committee is not None for run in runs)
    who_devices = "devices in no committee" if some else "devices"
    found = [seconds(run, clock) for run in runs]
    devices = [values[:, :-1][~np.isnan(values[:, :-1])] for values in found]
    server = [values[:, -1] for values in found]
    for one, who, parts in zip(axes, (who_devices, "server"), (devices, server), strict=True):
        if style == "ecdf":
            for number, (name, values) in enumerate(zip(labels, parts, strict=True)):
                places = np.sort(values)
                share = np.arange(places.size + 1) / max(1, places.size)
                look = line_style(number, places.size)
                if not places.size:
                    one.plot([], [], label=name, **look)
                    continue
                one.step([*places[:1], *places], share, where="post", label=name, **look)
        else:
            _draw_boxes(one, parts, range(len(runs)), across=True)
        one.set_title(who, fontsize=10)
        one.set_xlabel(axis)
        one.grid(alpha=0.3, axis="both" if style == "ecdf" else "x")
        from_zero(one, log_x)
    if style == "ecdf":
        axes[0].set_ylabel("share of values at most so large")
        axes[0].set_ylim(0, 1.02)
        legend_below(figure, axes[0])
    else:
        axes[0].set_yticks(range(len(runs)), naming.bar_labels(runs), fontsize=8)
        axes[0].set_ylim(len(runs) - 0.4, -0.6)
    return figure


def _check_boxes(count: int, what: str, remedy: str) -> None:
    if count > MOST_BOXES:
        raise UsageError(
            f"a figure has room for {MOST_BOXES} boxes and there are {count} {what}: {remedy}"
        )


def seconds(run: Run, clock: str) -> NDArray[np.float64]:
    """Return seconds of every measured round, shape (rounds, N + 1), the server last.

    A device that dropped out of a round, or was in its committee, has NaN there.
    """
    kept = run.measured
    found = (run.cpu_seconds if clock == "cpu" else run.wall_seconds)[kept].sum(axis=1)
    found[:, :-1][~(run.survived & run.ordinary)[kept]] = np.nan
    return found


def _draw_one(run: Run, name: str, clock: str, label: str, log_x: bool) -> Figure:
    _check_boxes(run.devices, "devices", "use --style ecdf")
    found = seconds(run, clock)
    boxes = [column[~np.isnan(column)] for column in found.T]
    width = max(4.0, min(11.0, 0.12 * run.devices)) + 1.6
    figure, axes = new_figure(width, 3.8, columns=2, sharey=True, width_ratios=(width - 1.6, 1.0))
    _draw_boxes(axes[0], boxes[:-1], range(run.devices))
    _draw_boxes(axes[1], boxes[-1:], [0])
    places = range(0, run.devices, tick_step(run.devices))
    axes[0].set_xticks(places, list(map(str, places)))
    axes[0].set(xlabel="device", ylabel=label)
    axes[1].set_xticks([0], ["server"])
    for one in axes:
        one.grid(alpha=0.3, axis="y")
        if log_x:
            one.set_yscale("log")
        else:
            one.set_ylim(0, 1.05 * float(np.nanmax(found)))
    figure.suptitle(f"{name}: {len(found)} measured rounds", fontsize=10)
    return figure


def _draw_boxes(
    axes: Axes, boxes: Sequence[NDArray[np.float64]], places: Sequence[int], across: bool = False
) -> None:
    axes.boxplot(
        boxes,
        positions=list(places),
        orientation="horizontal" if across else "vertical",
        widths=0.6,
        whis=(0, 100),
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": COLOURS[5], "linewidth": 0.8},
        medianprops={"color": "black", "linewidth": 1.6},
        whiskerprops={"linewidth": 0.8},
        capprops={"linewidth": 0.8},
    )
