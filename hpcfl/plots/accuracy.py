"""Accuracy of training runs against what they spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import looks, naming, seeds
from hpcfl.plots.style import (
    BYTES,
    PLAIN,
    Frame,
    from_zero,
    lacking_training,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
)
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEEDED = {"rounds": (), "bytes": (Metric.BYTES_UP_TOTAL,), "seconds": (Metric.MODELLED_SECONDS,)}


def lacking(run: Run, against: str = "rounds", **_: object) -> str | None:
    """Return in words why a run's accuracy cannot be drawn, None if it can."""
    return lacking_training(run, (Metric.ACCURACY, *_NEEDED[against]))


def draw(
    runs: Sequence[Run],
    frame: Frame = PLAIN,
    against: str = "rounds",
    target_accuracy: float | None = None,
    log_x: bool = False,
) -> Figure:
    """Return a line for each configuration: its accuracy on held-out data after each round.

    The line of runs that differ in nothing but their seeds is their mean, over the rounds that all
    of them have, in a band of one standard deviation to either side. Across are the numbers of
    rounds as in tables, the first being 0 (on a logarithmic axis, how many there were), bytes that
    all devices sent, or modelled seconds, since the start. A round whose aggregate was wrong is
    left out. `target_accuracy` is an accuracy that is marked.
    """
    link = naming.LINK if against == "seconds" else ()
    series = seeds.series(runs, frame, against, link)
    looked = looks.of_lines((one.protocol, one.label) for one in series)
    spent = [[_spent(run, against, log_x) for run in one.runs] for one in series]
    unit, unit_name = 1.0, ""
    if against == "bytes":
        every = np.concatenate([values for of_one in spent for values in of_one])
        unit, unit_name = unit_of(every, BYTES)
    figure, (axes,) = new_figure(frame, height=2.8)
    reached = [[run.training[Metric.ACCURACY] for run in one.runs] for one in series]
    curves = [
        (seeds.mean(one, of_one) / unit, seeds.mean(one, accuracy))
        for one, of_one, accuracy in zip(series, spent, reached, strict=True)
    ]
    for one, (across, middle), accuracy, width in zip(
        series, curves, reached, looks.widths(curves), strict=True
    ):
        look = looked[one.label]
        deviation = seeds.deviation(one, accuracy)
        if len(one.runs) > 1:
            ends = middle - deviation, middle + deviation
            axes.fill_between(across, *ends, color=look.shade, alpha=0.2, linewidth=0)
        axes.plot(across, middle, label=one.label, **look.curve(middle.size) | width)
    if target_accuracy is not None:
        axes.axhline(
            target_accuracy, color="0.4", dashes=(1, 2), label=f"target {target_accuracy:g}"
        )
    axes.set(xlabel=_across(runs, against, log_x, unit_name), ylabel="accuracy on held-out data")
    axes.grid(alpha=0.3)
    if against == "rounds" and not log_x:
        axes.margins(x=0.02)
    else:
        from_zero(axes, log_x)
    readable_ticks(axes, whole="x" if against == "rounds" else "")
    several = any(len(one.runs) > 1 for one in series)
    band = "mean and standard deviation over seeds" if several else ""
    set_title(figure, frame, "; ".join(filter(None, (naming.title(runs), band))))
    legend_below(figure, frame, axes)
    return figure


def _across(runs: Sequence[Run], against: str, log_x: bool, unit: str) -> str:
    """Return what is across."""
    if against == "bytes":
        return f"sent up by all devices, {unit}"
    if against == "seconds":
        links = {naming.rates(run.link()) for run in runs}
        # Of several links, the names of lines say which.
        return f"modelled time at {links.pop()}, s" if len(links) == 1 else "modelled time, s"
    return "number of rounds" if log_x else "round (the first is 0)"


def _spent(run: Run, against: str, log_x: bool) -> NDArray[np.float64]:
    """Return what a run had spent after each round, in B, s, or rounds: shape (R,)."""
    if against == "bytes":
        return run.training[Metric.BYTES_UP_TOTAL]
    if against == "seconds":
        return np.cumsum(run.training[Metric.MODELLED_SECONDS])
    return np.arange(run.rounds, dtype=np.float64) + (1.0 if log_x else 0.0)
