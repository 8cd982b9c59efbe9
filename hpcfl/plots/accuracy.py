"""Accuracy of training runs against what they spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import naming
from hpcfl.plots.style import from_zero, lacking_training, legend_below, line_style, new_figure
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {
    "rounds": "rounds",
    "bytes": "sent up by all devices, MB",
    "seconds": "modelled time, s",
}
_NEEDED = {"rounds": (), "bytes": (Metric.BYTES_UP_TOTAL,), "seconds": (Metric.MODELLED_SECONDS,)}


def lacking(run: Run, against: str = "rounds", **_: object) -> str | None:
    """Return in words why a run's accuracy cannot be drawn, None if it can."""
    return lacking_training(run, (Metric.ACCURACY, *_NEEDED[against]))


def draw(
    runs: Sequence[Run],
    against: str = "rounds",
    target: float | None = None,
    log_x: bool = False,
) -> Figure:
    """Return a line for each run: its accuracy on held-out data after each round.

    Across are rounds, bytes that all devices sent (MB, 10^6 bytes), or modelled seconds, since the
    start. A round whose aggregate was wrong is left out. `target` is an accuracy that is marked.
    """
    figure, (axes,) = new_figure()
    for number, (run, label) in enumerate(zip(runs, labels(runs, against), strict=True)):
        kept = run.validated
        across, accuracy = spent(run, against)[kept], run.training[Metric.ACCURACY][kept]
        axes.plot(across, accuracy, label=label, **line_style(number, accuracy.size))
    if target is not None:
        axes.axhline(target, color="0.4", linewidth=1, dashes=(1, 2), label=f"target {target:g}")
    axes.set(xlabel=AXES[against], ylabel="accuracy on held-out data")
    axes.set_title(naming.title(runs), fontsize=10)
    axes.grid(alpha=0.3)
    from_zero(axes, log_x)
    if against == "rounds" and not log_x:
        axes.locator_params(axis="x", integer=True)
    legend_below(figure, axes)
    return figure


def spent(run: Run, against: str) -> NDArray[np.float64]:
    """Return what a run had spent after each round, in the unit of `AXES`: shape (R,)."""
    if against == "bytes":
        return run.training[Metric.BYTES_UP_TOTAL] / 1e6
    if against == "seconds":
        return np.cumsum(run.training[Metric.MODELLED_SECONDS])
    return np.arange(1.0, run.rounds + 1)


def labels(runs: Sequence[Run], against: str = "rounds") -> list[str]:
    """Return a name for each run, no two the same."""
    # The bytes go on from the run that was interrupted; its rounds and seconds are not here.
    remarks = [
        f"{against} since resumed"
        if naming.option(run, "resume") is not None and against != "bytes"
        else ""
        for run in runs
    ]
    link = naming.LINK if against == "seconds" else ()
    return naming.labels(runs, (*naming.TASK, *naming.TOLD_APART, *link), remarks)
