"""The distribution of a round's seconds over devices and rounds, apart from the server's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import PlotOptions, looks, naming
from hpcfl.plots.style import finish, lacking_rounds, new_figure, ticks
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

lacking = lacking_rounds


def draw(runs: Sequence[Run], asked: PlotOptions) -> Figure:
    """Return four panels: CPU and elapsed seconds of whole rounds, of devices and of the server.

    Each run has a line, the cumulative distribution of its values over all measured rounds and over
    all devices that survived them.
    """
    runs = naming.pooled(runs, asked)
    labels = naming.unique(runs, naming.labels(runs))
    looked = looks.of_lines(zip(map(naming.named, runs), labels, strict=True))
    figure, axes = new_figure(asked, 4, 1.9, sharey=True)
    panels = [(clock, party) for clock in ("CPU", "elapsed") for party in ("device", "server")]
    for one, (clock, party) in zip(axes, panels, strict=True):
        for run, label in zip(runs, labels, strict=True):
            found = seconds(run, clock)
            values = np.sort((found[:, :-1] if party == "device" else found[:, -1]).ravel())
            values = values[~np.isnan(values)]
            if values.size:
                look = looked[label].curve() | {"markevery": 0.1}
                one.ecdf(values, **look)
                one.plot([], [], label=label, **looked[label].curve())
        one.set_title(party)
        one.set_xlabel(f"{clock} time in a round")
        one.set_xlim(left=0)
        one.set_ylim(0, 1.02)
        ticks(one.xaxis, "s")
    figure.supylabel("share of values", fontsize="medium")
    finish(figure, asked, [naming.common(runs)], *axes)
    return figure


def seconds(run: Run, clock: str) -> NDArray[np.float64]:
    """Return the seconds of every measured round, shape (rounds, N + 1), the server last.

    A device that dropped out of a round, or was in its committee, has NaN in that round.
    """
    kept = run.measured
    found = (run.cpu_seconds if clock == "CPU" else run.wall_seconds)[kept].sum(axis=1)
    found[:, :-1][~(run.survived & run.ordinary)[kept]] = np.nan
    return found
