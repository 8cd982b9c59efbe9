"""The bound of FedSGD-DPC against the number T of rounds, for several numbers b of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots import looks
from hpcfl.plots.style import (
    PLAIN,
    Frame,
    applied,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@applied()
def draw(
    rounds: NDArray[np.float64],
    per_round: Sequence[int],
    bounds: NDArray[np.float64],
    optima: Sequence[tuple[float, float] | None],
    title: str,
    start: float,
    frame: Frame = PLAIN,
) -> Figure:
    """Return a figure of U(T, b) over T, a line for every b, and a star where it is least.

    `rounds` holds T, shape (points,), `bounds` has the shape (lines, points), and `optima` holds
    (T, U) or None. `start` is Y0, the value without a round, a horizontal line.
    """
    figure, (axes,) = new_figure(frame, height=2.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, (b, values) in enumerate(zip(per_round, bounds, strict=True)):
        look = looks.numbered(number)
        axes.plot(rounds, values, **look.curve(rounds.size), label=f"b = {b}")
        least = optima[number]
        if least is not None and rounds[0] <= least[0] <= rounds[-1]:
            axes.plot(*least, marker="*", markersize=10, color=look.shade, linestyle="none")
    axes.axhline(start, color="0.5", linewidth=0.8, label="Y0, no round")
    axes.set_xlabel("rounds T")
    axes.set_ylabel("bound U(T, b)")
    axes.grid(alpha=0.3)
    readable_ticks(axes)
    set_title(figure, frame, title)
    legend_below(figure, frame, axes)
    return figure
