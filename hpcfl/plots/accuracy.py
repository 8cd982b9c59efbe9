"""Accuracy of training runs against what they spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots.style import line_style, new_figure
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {
    "rounds": "rounds",
    "bytes": "sent up by all devices, MB",
    "seconds": "modelled time, s",
}
# Options by which runs are told apart, beyond protocol and number of devices, if they differ.
_TOLD_APART = (
    *("dataset", "partition", "model", "alpha", "dropout", "degree", "epochs", "steps"),
    *("batch_size", "learning_rate", "momentum", "levels", "seed"),
)


def draw(runs: Sequence[Run], against: str, target: float | None = None) -> Figure:
    """Return a line for each run: its accuracy on held-out data after each round.

    Parameters
    ----------
    runs : sequence of Run
        Training runs.
    against : {"rounds", "bytes", "seconds"}
        What is across: rounds, bytes that all devices sent, or modelled seconds, since the start.
    target : float, optional
        An accuracy that is marked.
    """
    figure, (axes,) = new_figure()
    for number, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        across = spent(run, against)
        accuracy = run.training["accuracy"]
        axes.plot(across, accuracy, label=label, **line_style(number, accuracy.size))
    if target is not None:
        axes.axhline(target, color="0.5", linewidth=0.8)
        axes.annotate(
            f"{target:g}", (1, target), xycoords=("axes fraction", "data"), va="bottom", ha="right"
        )
    axes.set_xlabel(AXES[against])
    axes.set_ylabel("accuracy on held-out data")
    axes.grid(alpha=0.3)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)
    return figure


def spent(run: Run, against: str) -> NDArray[np.float64]:
    """Return what a run had spent after each round, in the unit of `AXES`: shape (R,)."""
    if against == "bytes":
        return run.training["bytes_up_total"] / 1e6
    if against == "seconds":
        return np.cumsum(run.training["modelled_seconds"])
    return np.arange(1.0, run.rounds + 1)


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: protocol, devices, and the options in which they differ."""
    differing = [
        name for name in _TOLD_APART if len({str(run.config.get(name)) for run in runs}) > 1
    ]
    return [", ".join(_parts(run, differing)) for run in runs]


def _parts(run: Run, differing: list[str]) -> list[str]:
    algorithm: Any = run.config.get("algorithm", "fedavg")
    name = run.protocol if algorithm == "fedavg" else algorithm
    parts = [str(name), f"N = {run.devices}"]
    return parts + [f"{name} {run.config.get(name)}" for name in differing]
