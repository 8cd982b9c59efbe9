"""What the phases of a round cost, devices and server apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots import looks, naming
from hpcfl.plots.style import (
    BYTES,
    PLAIN,
    SECONDS,
    Frame,
    inches_of,
    lacking_rounds,
    legend_below,
    letters_in,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
    wrap,
    wrapped,
)
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.reader import Run
from hpcfl.results.statistics import median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More bars do not fit a page.
MOST_BARS = 40
_NAMED_BY = ("dim", *naming.TASK, *TOLD_APART)

lacking = lacking_rounds


def draw(runs: Sequence[Run], frame: Frame = PLAIN) -> Figure:
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
            f"a figure has room for {MOST_BARS} bars and there are {len(runs)} runs: name fewer, "
            "or choose some with --where"
        )
    runs = naming.in_order(runs)
    labels = naming.labels(runs, _NAMED_BY, called=frame.called)
    looked = looks.of_phases(name for run in runs for name in run.phases)
    parties = ["member"] * any(run.in_committee is not None for run in runs)
    parties += ["helper"] * any(run.helpers for run in runs)
    measures = [_measures(run, parties) for run in runs]
    quantities = list(measures[0])
    height = 0.55 + 0.24 * len(runs)
    figure, axes = new_figure(frame, len(quantities), height, narrowest=2.0, sharey=True)
    letters = letters_in(0.4 * figure.get_figwidth())
    rows = [wrap(label, letters) for label in labels]
    beside = inches_of(max(len(line) for row in rows for line in row.splitlines()))
    for one, quantity in zip(axes, quantities, strict=True):
        found = [measure[quantity] for measure in measures]
        units = BYTES if quantity.startswith("sent") else SECONDS
        unit, name = unit_of(np.concatenate([whole for _, whole in found]), units)
        for row, (run, (parts, whole)) in enumerate(zip(runs, found, strict=True)):
            _draw_bar(one, row, [looked[phase] for phase in run.phases], parts / unit, whole / unit)
        one.set_title(wrapped(one, f"{quantity}, {name}", beside))
        one.autoscale_view()
        one.set_xlim(0, 1.05 * one.get_xlim()[1])
        one.grid(alpha=0.3, axis="x")
        readable_ticks(one)
    axes[0].set_yticks(range(len(runs)), rows)
    axes[0].set_ylim(len(runs) - 0.4, -0.6)
    for phase, look in looked.items():
        axes[0].barh([0], [0], label=phase, **look)
    intervals = any(median_interval(whole[~np.isnan(whole)]).known for _, whole in found)
    words = "median round, 95 % interval" if intervals else "median round"
    if max(int(run.measured.sum()) for run in runs) == 1:
        words = "whole round"
    axes[0].plot([], [], **_DOT, linestyle="none", label=words)
    set_title(figure, frame, "; ".join(naming.usual(runs, _NAMED_BY)))
    legend_below(figure, frame, axes[0], sample=1.8)
    return figure


def _measures(
    run: Run, parties: Sequence[str]
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return what is measured of phases and of whole rounds, shapes (rounds, P) and (rounds,).

    `parties` are those beside devices and server. It is in seconds and bytes.
    """
    server = run.cpu_seconds[run.measured][:, :, -1]
    devices = run.slowest_cpu_seconds("device")
    survived = (run.survived & run.ordinary)[run.measured][:, None, :]
    sent = (run.bytes_up[run.measured] * survived).sum(axis=2, dtype=float)
    sent[~survived.any(axis=(1, 2))] = np.nan
    sent /= np.maximum(1, survived.sum(axis=2))
    others = {
        f"CPU of the slowest {party}": (spent[:, :-1], spent[:, -1])
        for party in parties
        for spent in [run.slowest_cpu_seconds(party)]
    }
    return {
        "CPU of the slowest device": (devices[:, :-1], devices[:, -1]),
        "CPU of the server": (server, server.sum(axis=1)),
        "sent up by a survivor": (sent, sent.sum(axis=1)),
        **others,
    }


# Of a whole round.
_DOT: dict[str, Any] = {
    "marker": "o",
    "color": "black",
    "markeredgecolor": "white",
    "markersize": 4.5,
}


def _draw_bar(
    axes: Axes,
    row: int,
    looked: Sequence[dict[str, Any]],
    parts: NDArray[np.float64],
    whole: NDArray[np.float64],
) -> None:
    # Without rounds in which nobody was of that kind.
    parts, whole = parts[~np.isnan(whole)], whole[~np.isnan(whole)]
    if not whole.size:
        return
    left = 0.0
    for look, median in zip(looked, np.median(parts, axis=0), strict=True):
        axes.barh([row], [median], left=left, height=0.7, **look)
        left += median
    median = float(np.median(whole))
    interval = median_interval(whole)
    reach = [[median - interval.low], [interval.high - median]] if interval.known else None
    axes.errorbar([median], [row], xerr=reach, **_DOT, capsize=2, elinewidth=0.8)
