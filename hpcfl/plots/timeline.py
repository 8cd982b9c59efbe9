"""When the ranks were in which phase of a round, and for how much of it they waited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots import looks, naming
from hpcfl.plots.style import (
    PLAIN,
    SECONDS,
    Frame,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
)
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.ranktimes import RankTimes, rank_times
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More rows are too thin to be read.
MOST_RANKS = 256
# Time in MPI is as pale as this.
_PALE = 0.35
_WAITING: dict[str, Any] = {"facecolor": "white", "hatch": "////", "linewidth": 0}


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


def draw(runs: Sequence[Run], frame: Frame = PLAIN, round: int | None = None) -> Figure:
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
    unit, unit_name = unit_of([np.nanmax(times.end[index])], SECONDS)
    row = max(0.04, 0.2 / (1 + times.ranks / 40))
    figure, (axes,) = new_figure(frame, height=0.7 + row * times.ranks)
    rows = range(times.ranks)
    looked = looks.of_phases(run.phases)
    for phase, name in enumerate(run.phases):
        colour = looked[name]["facecolor"]
        left = np.nan_to_num(times.begin[index, phase] / unit)
        own = {"facecolor": colour, "edgecolor": "white", "linewidth": 0, "label": name}
        kinds: tuple[dict[str, Any], ...] = (
            own | {"hatch": looked[name]["hatch"]},
            {"facecolor": colour, "alpha": _PALE},
            _WAITING | {"edgecolor": colour},
        )
        parts = (times.computing, times.mpi, times.waiting)
        for part, look in zip(parts, kinds, strict=True):
            width = np.nan_to_num(part[index, phase] / unit)
            axes.barh(rows, width, left=left, height=0.85, **look)
            left = left + width
    axes.barh([0], [0], facecolor="0.4", alpha=_PALE, label="pale: in MPI")
    axes.barh([0], [0], **_WAITING, edgecolor="0.4", label="hatched: waiting")
    axes.set(xlabel=f"time since the first rank began, {unit_name}", ylabel="rank")
    axes.set_ylim(times.ranks - 0.4, -0.6)
    axes.set_xlim(left=0)
    readable_ticks(axes)
    room = 72 * figure.get_figheight() / (2 * times.ranks)  # points for a row, about
    step = math.ceil(8 / room)
    places = range(0, times.ranks, step)
    axes.set_yticks(places, [run.rank_name(rank) for rank in places])
    (name,) = naming.labels([run], ("dim", *naming.TASK, *TOLD_APART), called=frame.called)
    set_title(figure, frame, f"{name}: round {index}{_doubt(times, index)}")
    legend_below(figure, frame, axes)
    return figure


def _median_round(run: Run) -> int:
    """Return the measured round whose seconds are the median, the lower one of two."""
    indices = np.flatnonzero(run.measured)
    by_seconds = indices[np.argsort(run.round_seconds[indices], kind="stable")]
    return int(by_seconds[(len(by_seconds) - 1) // 2])


def _doubt(times: RankTimes, index: int) -> str:
    uncertain = float(times.clock_uncertainty[index])
    return f" (clocks of hosts to {1e6 * uncertain:.0f} microseconds)" if uncertain > 0 else ""
