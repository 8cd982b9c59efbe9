"""The bound of FedSGD-DPC against the number T of rounds, for several numbers b of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.plots.style import COLOURS, line_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    rounds: NDArray[np.float64],
    per_round: Sequence[int],
    bounds: NDArray[np.float64],
    optima: Sequence[tuple[float, float] | None],
    title: str,
    start: float,
) -> Figure:
    """Return a figure of U(T, b) over T, a line for every b, and a star where it is least.

    `rounds` holds T, shape (points,), `bounds` has the shape (lines, points), and `optima` holds
    (T, U) or None. `start` is Y0, the value without a round, a horizontal line.
    """
    figure, (axes,) = new_figure()
    for number, (b, values) in enumerate(zip(per_round, bounds, strict=True)):
        axes.plot(rounds, values, **line_style(number, rounds.size), label=f"b = {b}")
        least = optima[number]
        if least is not None and rounds[0] <= least[0] <= rounds[-1]:
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(*least, marker="*", markersize=12, color=colour, linestyle="none")
    axes.axhline(start, color="0.5", linewidth=1, label="Y0, no round")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rounds T")
    axes.set_ylabel("bound U(T, b)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    return figure
