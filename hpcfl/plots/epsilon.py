"""What private training spent of its privacy, and what accuracy it bought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.plots import naming
from hpcfl.plots.style import (
    check_lines,
    from_zero,
    lacking_training,
    legend_below,
    line_style,
    new_figure,
)
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Whose epsilon: the column of /training, and how its line differs from the other's.
SIDES = {
    "paper": (Metric.EPSILON_PAPER, {"linestyle": ":", "fillstyle": "none"}),
    "proven": (Metric.EPSILON_PROVEN, {"linestyle": "-", "fillstyle": "full"}),
}


def lacking(run: Run, **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    reason = lacking_training(run, (Metric.ACCURACY, *(column for column, _ in SIDES.values())))
    if reason is not None:
        return reason
    if not any(np.isfinite(run.training[column]).any() for column, _ in SIDES.values()):
        return "records no epsilon: its training was not private"
    return None


def draw(runs: Sequence[Run], log_x: bool = False) -> Figure:
    """Return two panels: both epsilons over rounds, and accuracy over both epsilons.

    For each run a full line with filled markers shows what is proven for the mechanism as it was
    run, a dotted one with empty markers what the paper claims. A round without a finite epsilon, or
    with a wrong aggregate, is left out.
    """
    check_lines(len(runs), "runs", each=len(SIDES))
    figure, (left, right) = new_figure(9.6, 3.8, columns=2)
    labels = naming.labels(runs, (*naming.TASK, *naming.TOLD_APART))
    for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
        rounds = np.arange(1, run.rounds + 1)
        accuracy = run.training[Metric.ACCURACY]
        for side, (column, look) in SIDES.items():
            epsilon = run.training[column]
            kept = run.validated & np.isfinite(epsilon)
            style = line_style(number, int(kept.sum())) | look
            words = side if kept.any() else f"{side}: none is finite"
            left.plot(rounds[kept], epsilon[kept], label=f"{label}, {words}", **style)
            right.plot(epsilon[kept], accuracy[kept], **style)
    left.set(xlabel="rounds", ylabel="epsilon")
    from_zero(left, log_x=False)
    left.locator_params(axis="x", integer=True)
    right.set(xlabel="epsilon", ylabel="accuracy on held-out data")
    from_zero(right, log_x)
    if log_x:
        left.set_yscale("log")
    else:
        left.set_ylim(bottom=0)
    for one in (left, right):
        one.grid(alpha=0.3)
    figure.suptitle(naming.title(runs), fontsize=10)
    legend_below(figure, left)
    return figure
