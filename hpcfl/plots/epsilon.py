"""What private training spent of its privacy, and what accuracy it bought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import looks, naming, seeds
from hpcfl.plots.style import (
    PLAIN,
    Frame,
    from_zero,
    lacking_training,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
)
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Whose epsilon: the column of /training, and how its line differs from the other's.
SIDES: dict[str, tuple[Metric, dict[str, Any]]] = {
    "paper": (Metric.EPSILON_PAPER, {"linestyle": ":"}),
    "proven": (Metric.EPSILON_PROVEN, {"linestyle": "-"}),
}


_MEANING = {"paper": "as the paper claims", "proven": "as proven for what was run"}


def lacking(run: Run, **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    reason = lacking_training(run, (Metric.ACCURACY, *(column for column, _ in SIDES.values())))
    if reason is not None:
        return reason
    if not any(np.isfinite(run.training[column]).any() for column, _ in SIDES.values()):
        return "records no finite epsilon: its training was not private, or its noise no secret"
    return None


def draw(runs: Sequence[Run], frame: Frame = PLAIN, log_x: bool = False) -> Figure:
    """Return two panels: both epsilons over rounds, and accuracy over both epsilons.

    For each configuration (means over runs that differ in their seeds alone) a full line shows what
    is proven for the mechanism as it was run, a dotted one what the paper claims. Of lines that are
    the same, those drawn first are wider, so that each is seen. A round without a finite epsilon,
    or with a wrong aggregate, is left out.
    """
    options = ("epsilon_delta",) if len(_deltas(runs)) > 1 else ()
    series = seeds.series(runs, frame, options=options)
    looked = looks.of_lines((one.protocol, one.label) for one in series)
    looks.check_count(len(series), "private configurations", looks.MOST_LINES // len(SIDES))
    curves = _curves(series)
    figure, (left, right) = new_figure(frame, 2, height=2.5)
    over_rounds = looks.widths([curve[:2] for curve in curves.values()])
    over_epsilon = looks.widths([curve[1:] for curve in curves.values()])
    for number, ((label, side), (rounds, epsilon, accuracy)) in enumerate(curves.items()):
        look = looked[label].curve(epsilon.size) | SIDES[side][1]
        left.plot(rounds, epsilon, **look | over_rounds[number])
        right.plot(epsilon, accuracy, **look | over_epsilon[number])
    for label, base in looked.items():
        none = [side for side in SIDES if not curves[label, side][0].size]
        words = "".join(f", {side}: none is finite" for side in none)
        left.plot([], [], label=f"{label}{words}", **base.points() | {"linestyle": "-"})
    for side, (_, shape) in SIDES.items():
        left.plot([], [], color="0.4", label=_MEANING[side], **shape)
    deltas = _deltas(runs)
    name = f"epsilon (delta = {deltas[0]:g})" if len(deltas) == 1 else "epsilon"
    left.set(xlabel="round (the first is 0)", ylabel=name)
    right.set(xlabel=name, ylabel="accuracy on held-out data")
    left.margins(x=0.03)
    from_zero(right, log_x)
    if log_x:
        left.set_yscale("log")
    else:
        left.set_ylim(bottom=0)
    for one in (left, right):
        one.grid(alpha=0.3)
        readable_ticks(one, whole="x" if one is left else "")
    several = "means over seeds" if any(len(one.runs) > 1 for one in series) else ""
    set_title(figure, frame, "; ".join(filter(None, (naming.title(runs), several))))
    legend_below(figure, frame, left)
    return figure


Curve = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _curves(series: Sequence[seeds.Series]) -> dict[tuple[str, str], Curve]:
    """Return the rounds, epsilons and accuracies of each line, by configuration and side."""
    found = {}
    for one in series:
        accuracy = seeds.mean(one, [run.training[Metric.ACCURACY] for run in one.runs])
        rounds = np.flatnonzero(one.kept).astype(float)
        for side, (column, _) in SIDES.items():
            epsilon = seeds.mean(one, [run.training[column] for run in one.runs])
            known = np.isfinite(epsilon)
            found[one.label, side] = rounds[known], epsilon[known], accuracy[known]
    return found


def _deltas(runs: Sequence[Run]) -> list[float]:
    """Return the deltas that go with the proven epsilons."""
    found = {run.config.get("epsilon_delta") for run in runs}
    return sorted(delta for delta in found if isinstance(delta, float))
