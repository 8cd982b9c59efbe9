"""What protocols ask of a device, bytes against CPU time, and what each of them hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots import exposure, naming
from hpcfl.plots.style import COLOURS, MARKERS, check_lines, legend_below, new_figure
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
    ``helper``, as far as the run has any.
    """
    kept = run.measured
    survived, ordinary = run.survived[kept], run.ordinary[kept]
    sent, spent = run.bytes_up[kept].sum(axis=1), run.cpu_seconds[kept][..., :-1].sum(axis=1)
    found = {}
    for party, among in (("device", survived & ordinary), ("member", survived & ~ordinary)):
        if among.any():
            found[party] = float(sent[among].mean()), float(spent[among].mean())
    if run.helpers and run.helper_bytes_up is not None and run.helper_cpu_seconds is not None:
        up, cpu = run.helper_bytes_up[kept], run.helper_cpu_seconds[kept]
        found["helper"] = float(up.sum(axis=1).mean()), float(cpu.sum(axis=1).mean())
    return found


def draw(runs: Sequence[Run], protocol: str | None = None) -> Figure:
    """Return a panel for each number of devices and of parameters: a point for each run.

    It is of a device; members of committees and helpers are hollow points, joined to those of their
    run. Names say which share of the values that a device sends a curious server learns by itself,
    where it learns any; all else that it learns are sums.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    places = sorted({(run.devices, run.dim) for run in runs})
    if len(places) > MOST_PANELS:
        raise UsageError(
            f"a figure has room for {MOST_PANELS} numbers of devices and parameters and there are "
            f"{len(places)}: name fewer runs"
        )
    names = [_name(run, runs) for run in runs]
    looks = {name: number for number, name in enumerate(dict.fromkeys(names))}
    check_lines(len(looks))
    alone: dict[str, float] = {}
    for run, name in zip(runs, names, strict=True):
        alone[name] = max(alone.get(name, 0.0), exposure.exposed_alone(run, protocol))
    figure, axes = new_figure(4.2 * len(places) + 1.0, 4.4, columns=len(places), sharey=True)
    for one, (devices, dim) in zip(axes, places, strict=True):
        for run, name in zip(runs, names, strict=True):
            if (run.devices, run.dim) == (devices, dim):
                _draw_run(one, run, _look(looks[name]))
        one.set(xscale="log", yscale="log")
        one.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        one.xaxis.set_minor_formatter(NullFormatter())
        one.set_title(f"N = {devices:,}, d = {dim:,}", fontsize=10)
        one.set_xlabel("sent in a round, kB")
        one.grid(alpha=0.3, which="major")
    for name, number in looks.items():
        share = f", {100 * alone[name]:.3g} % learned alone" if alone[name] >= _SOME else ""
        axes[0].plot([], [], label=f"{name}{share}", **_look(number))
    axes[0].set_ylabel("CPU time in a round, ms")
    figure.suptitle("filled: a device; hollow: a member of its committee, or a helper", fontsize=9)
    legend_below(figure, axes[0])
    return figure


def _look(number: int) -> dict[str, Any]:
    """Return how points look: as many are told apart as there are colours and markers together."""
    marker = MARKERS[(number + 3 * (number // len(COLOURS))) % len(MARKERS)]
    colour = COLOURS[number % len(COLOURS)]
    return {"color": colour, "marker": marker, "markersize": 6, "linestyle": "none"}


def _name(run: Run, runs: Sequence[Run]) -> str:
    """Return what a run is called, the same for all numbers of devices where that is enough."""
    of_place = [one for one in runs if (one.devices, one.dim) == (run.devices, run.dim)]
    alike = [one for one in of_place if naming.named(one) == naming.named(run)]
    if len(alike) == 1:
        return naming.named(run)
    return naming.labels(alike, naming.TOLD_APART)[alike.index(run)]


def _draw_run(axes: Axes, run: Run, look: dict[str, Any]) -> None:
    points = figures(run)
    x, y = points.pop("device") if "device" in points else points["member"]
    axes.plot([x / 1e3], [1e3 * y], **look)
    for other_x, other_y in points.values():
        xs, ys = np.array([x, other_x]) / 1e3, 1e3 * np.array([y, other_y])
        axes.plot(xs, ys, ":", color=look["color"], linewidth=1)
        axes.plot(xs[1:], ys[1:], **look | {"markerfacecolor": "white"})
