"""The costs of a round's phases, separately for devices and server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import PlotOptions, looks, naming
from hpcfl.plots.style import finish, lacking_rounds, new_figure, ticks
from hpcfl.results.reader import Run
from hpcfl.results.statistics import median_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The marker of a whole round.
_DOT: dict[str, Any] = {"marker": "o", "color": "black", "markeredgecolor": "white"}

lacking = lacking_rounds


def draw(runs: Sequence[Run], asked: PlotOptions) -> Figure:
    """Return a bar for each run in panels: devices' CPU, server's CPU, bytes up.

    Committee members and helpers, if any, have separate panels for their CPU time, and are not
    counted as devices.

    A bar is a stack of the phases' medians over the measured rounds: CPU seconds of the phase's
    slowest device, CPU seconds of the server, and bytes of a device, the mean over the survivors of
    the round. The medians of phases need not add up to the median of the round, and the slowest
    device can differ between phases. The dot is the median of whole rounds, with its 95 % interval
    if there are enough rounds.
    """
    runs = naming.pooled(runs)
    looked = looks.of_phases(name for run in runs for name in run.phases)
    others = ["member"] * any(run.in_committee.any() for run in runs)
    others += ["helper"] * any(run.helpers for run in runs)
    measures = [_measures(run, others) for run in runs]
    height = 0.5 + 0.2 * len(runs)
    figure, axes = new_figure(asked, len(measures[0]), height, narrowest=2.0, sharey=True)
    for one, quantity in zip(axes, measures[0], strict=True):
        for row, run in enumerate(runs):
            left = 0.0
            parts, whole = measures[row][quantity]
            # Rounds without such a party are NaN.
            known = ~np.isnan(whole)
            if not known.any():
                continue
            for phase, median in zip(run.phases, np.median(parts[known], axis=0), strict=True):
                one.barh([row], [median], left=left, height=0.7, **looked[phase])
                left += median
            middle, interval = float(np.median(whole[known])), median_interval(whole[known])
            reach = np.abs(np.array([[interval.low], [interval.high]]) - middle)
            one.errorbar([middle], [row], xerr=reach, **_DOT, capsize=2, elinewidth=0.8)
        one.set_title(quantity)
        one.grid(axis="y", visible=False)
        one.set_xlim(0, 1.04 * one.get_xlim()[1])
        ticks(one.xaxis, "B" if quantity.startswith("sent") else "s")
    axes[0].set_yticks(range(len(runs)), naming.unique(runs, naming.labels(runs)))
    axes[0].set_ylim(len(runs) - 0.4, -0.6)
    for phase, look in looked.items():
        axes[0].barh([0], [0], label=phase, **look)
    axes[0].plot([], [], **_DOT, linestyle="none", label="median round, 95 % interval")
    finish(figure, asked, [naming.common(runs)], axes[0])
    return figure


def _measures(
    run: Run, others: Sequence[str]
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return seconds and bytes of phases and of whole rounds, shapes (rounds, P) and (rounds,).

    `others` are the parties other than devices and server.
    """
    server = run.cpu_seconds[run.measured][:, :, -1]
    survived = (run.survived & run.ordinary)[run.measured][:, None, :]
    sent = (run.bytes_up[run.measured] * survived).sum(axis=2, dtype=float)
    sent[~survived.any(axis=(1, 2))] = np.nan
    sent /= np.maximum(1, survived.sum(axis=2))
    found = {
        f"CPU of the slowest {party}": (spent[:, :-1], spent[:, -1])
        for party in ("device", *others)
        for spent in [run.slowest_cpu_seconds(party)]
    }
    found["CPU of the server"] = server, server.sum(axis=1)
    found["sent up by a survivor"] = sent, sent.sum(axis=1)
    return found
