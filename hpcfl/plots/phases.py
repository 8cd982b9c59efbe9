"""What the phases of a round cost, devices and server apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots import naming
from hpcfl.plots.style import area_style, lacking_rounds, legend_below, new_figure
from hpcfl.results.reader import Run
from hpcfl.results.statistics import median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More bars do not fit a page.
MOST_BARS = 40

lacking = lacking_rounds


def draw(runs: Sequence[Run]) -> Figure:
    """Return a bar for each run in panels: devices' CPU, server's CPU, bytes up.

    Where some have members of a committee, or helpers, there is a panel for the CPU of these, who
    are not among the devices.

    A bar is a stack of the phases' medians over the measured rounds: CPU seconds of the phase's
    slowest device, CPU seconds of the server, and bytes of a device, mean over those that survived
    the round. The medians of phases need not add up to the median of the round, and the slowest
    device need not be the same in all phases; the dot is the median of whole rounds, with its 95 %
    interval where there are enough of them. More runs than bars fit are a UsageError.
    """
    if len(runs) > MOST_BARS:
        raise UsageError(
            f"a figure has room for {MOST_BARS} bars and there are {len(runs)} runs: name fewer"
        )
    runs = naming.in_order(runs)
    labels = naming.bar_labels(runs)
    names = list(dict.fromkeys(name for run in runs for name in run.phases))
    parties = ["member"] * any(run.in_committee is not None for run in runs)
    parties += ["helper"] * any(run.helpers for run in runs)
    columns = 3 + len(parties)
    figure, axes = new_figure(3.5 * columns, 1.1 + 0.34 * len(runs), columns=columns, sharey=True)
    for row, run in enumerate(runs):
        looks = [names.index(name) for name in run.phases]
        for one, (label, found) in zip(axes, _measures(run, parties).items(), strict=True):
            _draw_bar(one, row, looks, *found)
            one.set_xlabel(label)
    for one in axes:
        one.autoscale_view()
        one.set_xlim(0, 1.05 * one.get_xlim()[1])
        one.grid(alpha=0.3, axis="x")
        one.set_axisbelow(True)
    axes[0].set_yticks(range(len(runs)), labels, fontsize=8)
    axes[0].set_ylim(len(runs) - 0.4, -0.6)
    for number, name in enumerate(names):
        axes[0].barh([0], [0], label=name, **area_style(number))
    axes[0].plot([], [], "o", color="black", markersize=3.5, label="whole round, median")
    legend_below(figure, axes[0])
    return figure


def _measures(
    run: Run, parties: Sequence[str]
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return what is measured of phases and of whole rounds, shapes (rounds, P) and (rounds,).

    `parties` are those beside devices and server.
    """
    server = 1e3 * run.cpu_seconds[run.measured][:, :, -1]
    devices = 1e3 * run.slowest_cpu_seconds("device")
    survived = (run.survived & run.ordinary)[run.measured][:, None, :]
    sent = (run.bytes_up[run.measured] * survived).sum(axis=2, dtype=float)
    sent[~survived.any(axis=(1, 2))] = np.nan
    sent /= np.maximum(1, survived.sum(axis=2))
    others = {
        f"CPU of the slowest {party}, ms": (spent[:, :-1], spent[:, -1])
        for party in parties
        for spent in [1e3 * run.slowest_cpu_seconds(party)]
    }
    return {
        "CPU of the slowest device, ms": (devices[:, :-1], devices[:, -1]),
        "CPU of the server, ms": (server, server.sum(axis=1)),
        "sent up by a survivor, kB": (sent / 1e3, sent.sum(axis=1) / 1e3),
        **others,
    }


def _draw_bar(
    axes: Axes, row: int, looks: list[int], parts: NDArray[np.float64], whole: NDArray[np.float64]
) -> None:
    # Without rounds in which nobody was of that kind.
    parts, whole = parts[~np.isnan(whole)], whole[~np.isnan(whole)]
    if not whole.size:
        return
    left = 0.0
    for look, median in zip(looks, np.median(parts, axis=0), strict=True):
        axes.barh([row], [median], left=left, height=0.7, **area_style(look))
        left += median
    median = float(np.median(whole))
    interval = median_interval(whole)
    reach = [[median - interval.low], [interval.high - median]] if interval.known else None
    dot: dict[str, Any] = {"fmt": "o", "color": "black", "markeredgecolor": "white"}
    dot |= {"markersize": 4.5, "capsize": 2.5, "elinewidth": 1}
    axes.errorbar([median], [row], xerr=reach, **dot)
