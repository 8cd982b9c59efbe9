"""What protocols ask of a device, bytes against CPU time, and what each of them hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots import exposure, naming
from hpcfl.plots.style import COLOURS, new_figure
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
    run. Blue points stand for runs in which the server learns nothing but sums by itself, orange
    ones for those in which it learns some of the values that a device sends, with the share.
    """
    places = sorted({(run.devices, run.dim) for run in runs})
    if len(places) > MOST_PANELS:
        raise UsageError(
            f"a figure has room for {MOST_PANELS} numbers of devices and parameters and there are "
            f"{len(places)}: name fewer runs"
        )
    labels = dict(zip(map(id, runs), naming.labels(runs, naming.TOLD_APART), strict=True))
    figure, axes = new_figure(5.2 * len(places), 4.6, columns=len(places))
    for one, (devices, dim) in zip(axes, places, strict=True):
        of_place = [run for run in runs if (run.devices, run.dim) == (devices, dim)]
        for run in of_place:
            label = labels[id(run)] if _several(of_place, run) else naming.named(run)
            _draw_run(one, run, label, exposure.exposed_alone(run, protocol))
        one.set(xscale="log", yscale="log")
        one.margins(0.18)
        one.set_title(f"N = {devices:,}, d = {dim:,}", fontsize=10)
        one.set_xlabel("sent in a round, kB")
        one.grid(alpha=0.3, which="major")
    axes[0].set_ylabel("CPU time in a round, ms")
    figure.suptitle(
        "filled: a device; hollow: a member of a committee, or a helper. Orange: share of its "
        "values\nthat a curious server learns by itself, a third of the devices colluding",
        fontsize=9,
    )
    return figure


def _several(runs: Sequence[Run], run: Run) -> bool:
    return sum(naming.named(other) == naming.named(run) for other in runs) > 1


def _draw_run(axes: Axes, run: Run, label: str, alone: float) -> None:
    exposed = alone >= _SOME
    colour = COLOURS[1 if exposed else 0]
    points = figures(run)
    if "device" not in points:
        points["device"] = points["member"]
    (x, y) = points.pop("device")
    share = f" ({100 * alone:.3g} %)" if exposed else ""
    axes.plot([x / 1e3], [1e3 * y], "o", color=colour, markersize=6)
    axes.annotate(
        f"{label}{share}",
        (x / 1e3, 1e3 * y),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize=7,
    )
    for party, (other_x, other_y) in points.items():
        xs, ys = np.array([x, other_x]) / 1e3, 1e3 * np.array([y, other_y])
        axes.plot(xs, ys, ":", color=colour, linewidth=1)
        axes.plot(xs[1:], ys[1:], "o", color=colour, markerfacecolor="white", markersize=6)
        axes.annotate(
            f"its {party}",
            (xs[1], ys[1]),
            xytext=(4, -9),
            textcoords="offset points",
            fontsize=6,
        )
