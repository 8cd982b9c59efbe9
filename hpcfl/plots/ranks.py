"""How the seconds of a round spread over devices and rounds, devices and server apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots import looks, naming
from hpcfl.plots.style import (
    PLAIN,
    SECONDS,
    Frame,
    from_zero,
    label_first_column,
    lacking_rounds,
    legend_below,
    letters_in,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
    wrap,
)
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More boxes are too thin to be read.
MOST_BOXES = 128
_NAMED_BY = ("dim", *naming.TASK, *TOLD_APART)

lacking = lacking_rounds


def draw(
    runs: Sequence[Run],
    frame: Frame = PLAIN,
    spread: str = "ecdf",
    clock: str = "cpu",
    log_x: bool = False,
) -> Figure:
    """Return two panels, the devices' seconds in whole rounds and the server's.

    ``ecdf``: a line for each run, the share of values that are at most so large, over all devices
    that survived and all measured rounds. ``box``: for one run a box for each device, over the
    rounds that it survived; for several runs a box for each. A box is from the first to the third
    quartile with a line at the median; whiskers reach to the smallest and largest value, so that
    nothing is left out.
    """
    runs = naming.in_order(runs)
    labels = naming.labels(runs, _NAMED_BY, called=frame.called)
    if spread == "box" and len(runs) == 1:
        return _draw_one(runs[0], labels[0], frame, clock, log_x)
    if spread == "box":
        _check_boxes(len(runs), "runs", "name fewer, or choose some with --where")
    looked = looks.of_lines(zip(map(naming.named, runs), labels, strict=True))
    height = 0.55 + 0.24 * len(runs) if spread == "box" else 2.3
    figure, axes = new_figure(frame, 2, height, sharey=True)
    some = any(run.in_committee is not None for run in runs)
    found = [seconds(run, clock) for run in runs]
    devices = [values[:, :-1][~np.isnan(values[:, :-1])] for values in found]
    server = [values[:, -1] for values in found]
    who_devices = "devices in no committee" if some else "devices"
    for one, who, parts in zip(axes, (who_devices, "server"), (devices, server), strict=True):
        unit, name = unit_of(np.concatenate(parts), SECONDS)
        scaled = [values / unit for values in parts]
        if spread == "ecdf":
            _draw_shares(one, dict(zip(labels, scaled, strict=True)), looked)
        else:
            colours = [looked[label].colour for label in labels]
            _draw_boxes(one, scaled, range(len(runs)), colours, across=True)
        one.set_title(who)
        one.set_xlabel(f"{_what(clock)}, {name}")
        one.grid(alpha=0.3, axis="both" if spread == "ecdf" else "x")
        from_zero(one, log_x)
        readable_ticks(one)
    if spread == "ecdf":
        axes[0].set_ylim(0, 1.02)
        for one in axes:
            label_first_column(one, "share of values")
        legend_below(figure, frame, axes[0])
    else:
        letters = letters_in(0.4 * figure.get_figwidth())
        axes[0].set_yticks(range(len(runs)), [wrap(label, letters) for label in labels])
        axes[0].set_ylim(len(runs) - 0.4, -0.6)
    set_title(figure, frame, "; ".join(naming.usual(runs, _NAMED_BY)))
    return figure


def _what(clock: str) -> str:
    return f"{'CPU' if clock == 'cpu' else 'elapsed'} time in a round"


def _draw_shares(
    axes: Axes, found: Mapping[str, NDArray[np.float64]], looked: Mapping[str, looks.Look]
) -> None:
    """Draw for each run which share of its values is at most so large."""
    for label, values in found.items():
        places = np.sort(values)
        share = np.arange(places.size + 1) / max(1, places.size)
        look = looked[label].curve(places.size)
        if not places.size:
            axes.plot([], [], label=label, **look)
            continue
        axes.step([*places[:1], *places], share, where="post", label=label, **look)


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


def _draw_one(run: Run, name: str, frame: Frame, clock: str, log_x: bool) -> Figure:
    _check_boxes(run.devices, "devices", "use --spread ecdf")
    found = seconds(run, clock)
    unit, unit_name = unit_of(found, SECONDS)
    boxes = [column[~np.isnan(column)] / unit for column in found.T]
    figure, axes = new_figure(frame, 2, height=2.4, narrowest=0.1, width_ratios=(9.0, 1.0))
    colour = looks.of_protocols([naming.named(run)])[naming.named(run)].colour
    _draw_boxes(axes[0], boxes[:-1], range(run.devices), [colour] * run.devices)
    _draw_boxes(axes[1], boxes[-1:], [0], [colour])
    for one, values in zip(axes, (found[:, :-1], found[:, -1]), strict=True):
        one.grid(alpha=0.3, axis="y")
        if log_x:
            one.set_yscale("log")
        else:
            one.set_ylim(0, 1.05 * float(np.nanmax(values, initial=0.0)) / unit or 1.0)
        readable_ticks(one, whole="x")
    axes[0].set(xlabel="device", ylabel=f"{_what(clock)}, {unit_name}")
    axes[1].set_xticks([0], ["server"])
    rounds = f"{len(found)} measured round{'s' if len(found) > 1 else ''}"
    set_title(figure, frame, f"{name}: {rounds}")
    return figure


def _draw_boxes(
    axes: Axes,
    boxes: Sequence[NDArray[np.float64]],
    places: Sequence[int],
    colours: Sequence[str],
    across: bool = False,
) -> None:
    drawn = axes.boxplot(
        boxes,
        positions=list(places),
        orientation="horizontal" if across else "vertical",
        widths=0.6,
        whis=(0, 100),
        manage_ticks=False,
        patch_artist=True,
        boxprops={"linewidth": 0.5},
        medianprops={"color": "black", "linewidth": 1.2},
        whiskerprops={"linewidth": 0.6},
        capprops={"linewidth": 0.6},
    )
    from matplotlib.colors import to_rgba

    for box, colour in zip(drawn["boxes"], colours, strict=True):
        box.set_facecolor(to_rgba(colour, 0.5))
