"""When the ranks were in which phase of a round, and for how much of it they waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots import naming
from hpcfl.plots.style import COLOURS, legend_below, new_figure, tick_step
from hpcfl.results.ranktimes import RankTimes, rank_times
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More rows are too thin to be read.
MOST_RANKS = 256
# Time in MPI is as pale as this.
_PALE = 0.35


def lacking(run: Run, round: int | None = None) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    times = rank_times(run)
    if times is None:
        return "does not record the times of ranks: hpcfl bench writes them from this version on"
    if round is not None and round >= run.rounds:
        return f"has no round {round}: it has {run.rounds}, the first is 0"
    if round is None and not run.measured.any():
        return "has no measured round"
    if times.ranks > MOST_RANKS:
        return f"has {times.ranks} ranks and a figure has room for {MOST_RANKS}: see report --trace"
    return None


def draw(runs: Sequence[Run], round: int | None = None) -> Figure:
    """Return a row for every rank of one run, with a bar for each phase of a round.

    The round is the one with this index, else the measured one of median seconds. A bar begins and
    ends when the phase did on this rank, on the server's clock. How its time was spent is drawn in
    this order, whatever the order was: computing in full colour, in MPI pale, waiting hatched.
    """
    if len(runs) > 1:
        raise UsageError(f"a timeline is of one run and there are {len(runs)}: name one file")
    (run,) = runs
    times = rank_times(run)
    assert times is not None
    index = _median_round(run) if round is None else round
    figure, (axes,) = new_figure(9.6, 1.2 + max(0.05, 0.25 / (1 + times.ranks / 40)) * times.ranks)
    rows = range(times.ranks)
    for phase, name in enumerate(run.phases):
        colour = COLOURS[phase % len(COLOURS)]
        left = 1e3 * times.begin[index, phase]
        looks: tuple[dict[str, Any], ...] = (
            {"facecolor": colour, "label": name},
            {"facecolor": colour, "alpha": _PALE},
            {"facecolor": "white", "edgecolor": colour, "hatch": "////", "linewidth": 0},
        )
        parts = (times.computing, times.mpi, times.waiting)
        for part, look in zip(parts, looks, strict=True):
            width = 1e3 * part[index, phase]
            axes.barh(rows, np.nan_to_num(width), left=np.nan_to_num(left), height=0.85, **look)
            left = left + width
    axes.barh([0], [0], facecolor="0.4", alpha=_PALE, label="pale: in MPI")
    axes.barh([0], [0], facecolor="white", edgecolor="0.4", hatch="////", label="hatched: waiting")
    places = range(0, times.ranks, tick_step(times.ranks))
    axes.set_yticks(places, [run.rank_name(rank) for rank in places], fontsize=8)
    axes.set(xlabel="time since the first rank began, ms", ylabel="rank")
    axes.set_ylim(times.ranks - 0.4, -0.6)
    axes.set_xlim(left=0)
    (name,) = naming.labels([run], ("dim", *naming.TASK, *naming.TOLD_APART))
    axes.set_title(f"{name}: round {index}{_doubt(times, index)}", fontsize=10)
    legend_below(figure, axes)
    return figure


def _median_round(run: Run) -> int:
    """Return the measured round whose seconds are the median, the lower one of two."""
    indices = np.flatnonzero(run.measured)
    by_seconds = indices[np.argsort(run.round_seconds[indices], kind="stable")]
    return int(by_seconds[(len(by_seconds) - 1) // 2])


def _doubt(times: RankTimes, index: int) -> str:
    uncertain = float(times.clock_uncertainty[index])
    return f" (clocks of hosts to {1e6 * uncertain:.0f} microseconds)" if uncertain > 0 else ""
