"""What protocols ask of a device, bytes against CPU time, and what each of them hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots import exposure, looks, naming
from hpcfl.plots.style import (
    BYTES,
    PLAIN,
    SECONDS,
    Frame,
    label_first_column,
    leave_room,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
)
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More panels do not fit a page.
MOST_PANELS = 4
# From which share of the values that it sends a device is exposed, as it is printed.
_SOME = 5e-4

lacking = exposure.lacking


def figures(run: Run) -> dict[str, tuple[float, float]]:
    """Return bytes that a party sends in a round, and its CPU seconds, means over measured rounds.

    Of a ``device`` whose vector is in the sum, of such a ``member`` of a committee, and of a
    ``helper`` that has not dropped out, as far as the run has any.
    """
    kept = run.measured
    survived, ordinary = run.survived[kept], run.ordinary[kept]
    sent, spent = run.bytes_up[kept].sum(axis=1), run.cpu_seconds[kept][..., :-1].sum(axis=1)
    found = {}
    for party, among in (("device", survived & ordinary), ("member", survived & ~ordinary)):
        if among.any():
            found[party] = float(sent[among].mean()), float(spent[among].mean())
    if run.helpers and run.helper_bytes_up is not None and run.helper_cpu_seconds is not None:
        there = run.helped[kept]
        if there.any():
            up, cpu = (
                run.helper_bytes_up[kept].sum(axis=1),
                run.helper_cpu_seconds[kept].sum(axis=1),
            )
            found["helper"] = float(up[there].mean()), float(cpu[there].mean())
    return found


def draw(runs: Sequence[Run], frame: Frame = PLAIN, protocol: str | None = None) -> Figure:
    """Return a panel for each number of devices and of parameters: a point for each run.

    It is of a device; members of committees and helpers are hollow points, joined to those of their
    run. Names say which share of the values that a device sends a curious server learns by itself,
    where it learns any; all else that it learns are sums.
    """
    places = sorted({(run.devices, run.dim) for run in runs})
    if len(places) > MOST_PANELS:
        raise UsageError(
            f"a figure has room for {MOST_PANELS} numbers of devices and parameters and there are "
            f"{len(places)}: name fewer runs, or choose some with --where"
        )
    names = [_name(run, runs, frame) for run in runs]
    looked = looks.of_lines(zip(map(naming.named, runs), names, strict=True))
    alone: dict[str, float] = {}
    for run, name in zip(runs, names, strict=True):
        alone[name] = max(alone.get(name, 0.0), exposure.exposed_alone(run, protocol))
    found = [figures(run) for run in runs]
    sent, spent = zip(*(point for points in found for point in points.values()), strict=True)
    units = unit_of(sent, BYTES), unit_of(spent, SECONDS)
    figure, axes = new_figure(frame, len(places), height=2.7, sharey=True)
    for one, (devices, dim) in zip(axes, places, strict=True):
        one.set(xscale="log", yscale="log")
        for run, name, points in zip(runs, names, found, strict=True):
            if (run.devices, run.dim) == (devices, dim):
                _draw_run(one, points, looked[name].points(), (units[0][0], units[1][0]))
        if len(places) > 1:
            one.set_title(f"N = {devices:,}, d = {dim:,}")
        one.set_xlabel(f"sent in a round, {units[0][1]}")
        label_first_column(one, f"CPU time in a round, {units[1][1]}")
        one.grid(alpha=0.3)
        readable_ticks(one)
    for one in axes:  # now that all that share an axis have their points
        leave_room(one, x=True)
    for name, look in looked.items():
        share = f", {100 * alone[name]:.3g} % learned alone" if alone[name] >= _SOME else ""
        axes[0].plot([], [], label=f"{name}{share}", **look.points())
    where = f"N = {places[0][0]:,}, d = {places[0][1]:,}" if len(places) == 1 else ""
    others = any(len(points) > 1 for points in found)
    hollow = "joined by dots: a member of its committee, or a helper" if others else ""
    set_title(figure, frame, "; ".join(filter(None, (where, hollow))))
    legend_below(figure, frame, axes[0], sample=1.5)
    return figure


def _name(run: Run, runs: Sequence[Run], frame: Frame) -> str:
    """Return what a run is called, the same for all numbers of devices where that is enough."""
    of_place = [one for one in runs if (one.devices, one.dim) == (run.devices, run.dim)]
    alike = [one for one in of_place if naming.named(one) == naming.named(run)]
    if len(alike) == 1:
        return naming.shown(run, frame.called)
    told = naming.unusual(runs, naming.differing(alike, TOLD_APART))
    names = [
        ", ".join([naming.shown(run, frame.called), *settings])
        for one, settings in zip(runs, told, strict=True)
        if one in alike
    ]
    if len(set(names)) < len(names):
        names = naming.labels(alike, TOLD_APART, called=frame.called)
    return names[alike.index(run)]


def _draw_run(
    axes: Axes,
    points: dict[str, tuple[float, float]],
    look: dict[str, Any],
    units: tuple[float, float],
) -> None:
    places = {party: np.divide(place, units) for party, place in points.items()}
    first = places.pop("device") if "device" in places else places.pop("member")
    axes.plot(*first, **look | {"markersize": 5})
    for other in places.values():
        axes.plot(*np.stack([first, other], axis=1), ":", color=look["color"], linewidth=0.8)
        hollow = {"markerfacecolor": "white", "fillstyle": "full", "markersize": 5}
        axes.plot(*other, **look | hollow)
