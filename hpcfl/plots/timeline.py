"""A timeline of the ranks' phases in a round, with the time that they waited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.plots import PlotOptions, looks, naming
from hpcfl.plots.style import finish, lacking_rounds, new_figure, ticks
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PALE = 0.35  # time in MPI
_WAITING: dict[str, Any] = {"facecolor": "white", "hatch": "////", "linewidth": 0}


def lacking(run: Run, asked: PlotOptions) -> str | None:
    """Return the reason why a run cannot be drawn, None if it can."""
    if not run.begin_seconds.size:
        return "does not record the times of ranks: hpcfl bench on several ranks does"
    if asked.round is not None and asked.round >= run.rounds:
        return f"has no round {asked.round}: it has {run.rounds}, the first is 0"
    return lacking_rounds(run) if asked.round is None else None


def draw(runs: Sequence[Run], asked: PlotOptions) -> Figure:
    """Return a row for every rank of one run, with a bar for each phase of a round.

    The round is the requested one, by default the measured round of median seconds. A bar begins
    and ends with the phase on this rank, by the server's clock. Whatever the actual order, a bar
    first shows computing (full colour), then time in MPI (pale), then waiting (hatched).
    """
    if len(runs) > 1:
        raise UsageError(f"a timeline shows one run, and {len(runs)} are given: name one file")
    (run,) = runs
    ranks = run.begin_seconds.shape[2]
    index = _median_round(run) if asked.round is None else asked.round
    height = 0.7 + max(0.04, 0.2 / (1 + ranks / 40)) * ranks
    figure, (axes,) = new_figure(asked, height=height)
    rows = range(ranks)
    looked = looks.of_phases(run.phases)
    for phase, name in enumerate(run.phases):
        look = looked[name]
        left = np.nan_to_num(run.begin_seconds[index, phase])
        colour = look["facecolor"]
        parts = (
            (run.computing_seconds, look | {"linewidth": 0, "label": name}),
            (run.mpi_seconds, {"facecolor": colour, "alpha": _PALE}),
            (run.waiting_seconds, _WAITING | {"edgecolor": colour}),
        )
        for seconds, style in parts:
            width = np.nan_to_num(seconds[index, phase])
            axes.barh(rows, width, left=left, height=0.85, **style)
            left = left + width
    axes.barh([0], [0], facecolor="0.4", alpha=_PALE, label="pale: in MPI")
    axes.barh([0], [0], **_WAITING, edgecolor="0.4", label="hatched: waiting")
    axes.set(xlabel="time since the first rank began", ylabel="rank")
    axes.set_ylim(ranks - 0.4, -0.6)
    axes.set_xlim(left=0)
    ticks(axes.xaxis, "s")
    step = math.ceil(ranks / 40)
    named = range(0, ranks, step)
    axes.set_yticks(named, [run.rank_name(rank) for rank in named])
    uncertain = float(run.clock_uncertainty_seconds[index])
    doubt = f"clocks of hosts to {1e6 * uncertain:.0f} microseconds" if uncertain > 0 else ""
    title = [f"{naming.named(run)}, {naming.common(runs)}: round {index}", doubt]
    finish(figure, asked, title, axes)
    return figure


def _median_round(run: Run) -> int:
    """Return the measured round of median seconds, the faster one if there are two."""
    indices = np.flatnonzero(run.measured)
    by_seconds = indices[np.argsort(run.round_seconds[indices], kind="stable")]
    return int(by_seconds[(len(by_seconds) - 1) // 2])
