"""Accuracy of training runs against rounds, bytes, time or epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.options.definition import names
from hpcfl.options.shared import LinkOptions
from hpcfl.plots import PlotOptions, looks, naming
from hpcfl.plots.style import finish, new_figure, ticks
from hpcfl.results import pooling
from hpcfl.results.reader import Run
from hpcfl.results.schema import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Across(NamedTuple):
    """A quantity for the x axis."""

    name: str
    unit: str = ""
    needed: tuple[Metric, ...] = ()
    telling: Sequence[str] = ()  # further options that distinguish lines


_EPSILONS = (Metric.EPSILON_PROVEN, Metric.EPSILON_PAPER)
_ACROSS = {
    "rounds": _Across("round (the first is 0)"),
    "bytes": _Across("sent up by all devices", "B", (Metric.BYTES_UP_TOTAL,)),
    "seconds": _Across("modelled time", "s", (Metric.MODELLED_SECONDS,), names(LinkOptions)),
    "epsilon": _Across("epsilon", "", _EPSILONS, ("epsilon_delta",)),
}


def lacking(run: Run, asked: PlotOptions) -> str | None:
    """Return the reason why a run's accuracy cannot be drawn, None if it can."""
    if not run.training:
        return "has no training: hpcfl train writes it"
    needed = _ACROSS[asked.against or "rounds"].needed
    for name in (Metric.ACCURACY, *needed):
        if name not in run.training:
            return f"does not record {name}"
    if asked.against == "epsilon" and not any(
        np.isfinite(run.training[name]).any() for name in needed
    ):
        return "records no finite epsilon: its training was not private, or its noise no secret"
    return None if run.validated.any() else "has no finished round"


def draw(runs: Sequence[Run], asked: PlotOptions) -> Figure:
    """Return a line for each configuration: its accuracy on held-out data after each round.

    Runs that differ only in their seeds share a line, their mean over the rounds that all of them
    have, in a band of one standard deviation to either side. Rounds, bytes and modelled seconds
    count from the beginning of a file. Against epsilon, a solid line shows the epsilon proven for
    the mechanism as it was run, a dotted line the paper's claim. Rounds with a wrong aggregate are
    left out.
    """
    against = asked.against or "rounds"
    pools = pooling.group(runs, trainings=True)
    firsts = [pool.runs[0] for pool in pools]
    seeds = () if all(len(pool.runs) == 1 for pool in pools) else ("seed",)
    called = naming.labels(firsts, without=seeds, more=_ACROSS[against].telling)
    labels = [
        f"{name}, {len(pool.runs)} seeds" if len(pool.runs) > 1 else name
        for name, pool in zip(naming.unique(firsts, called), pools, strict=True)
    ]
    looked = looks.of_lines(zip(map(naming.named, firsts), labels, strict=True))
    figure, (axes,) = new_figure(asked, height=2.6)
    for place, (label, pool) in enumerate(zip(labels, pools, strict=True)):
        accuracy = _together(pool.runs, [run.training[Metric.ACCURACY] for run in pool.runs])
        middle = accuracy.mean(axis=0)
        # Exact sums give equal lines; shifted markers keep them visible.
        look = looked[label].curve() | {"markevery": (place / 100, 0.1)}
        spent = _together(pool.runs, [_spent(run, against) for run in pool.runs]).mean(axis=0)
        if len(pool.runs) > 1:
            spread = accuracy.std(axis=0, ddof=1)
            axes.fill_between(
                spent, middle - spread, middle + spread, color=look["color"], alpha=0.2, linewidth=0
            )
        if against == "epsilon":
            look["linestyle"] = "-"
            claimed = [run.training[Metric.EPSILON_PAPER] for run in pool.runs]
            across = _together(pool.runs, claimed).mean(axis=0)
            axes.plot(across, middle, **look | {"linestyle": ":"})
        axes.plot(spent, middle, label=label, **look)
    axes.set(xlabel=_ACROSS[against].name, ylabel="accuracy on held-out data")
    axes.set_xlim(left=0)
    ticks(axes.xaxis, _ACROSS[against].unit)
    several = any(len(pool.runs) > 1 for pool in pools)
    title = [naming.common(firsts)]
    title += ["mean and standard deviation over seeds"] * several
    if against == "seconds" and len({run.link() for run in firsts}) == 1:
        title.append(naming.rates(firsts[0].link()))
    if against == "epsilon":
        title.append("full: as proven for what was run, dotted: as the paper claims")
    finish(figure, asked, title, axes)
    return figure


def _spent(run: Run, against: str) -> NDArray[np.float64]:
    """Return a run's spending after each round in rounds, bytes, s or epsilon, shape (R,)."""
    if against == "bytes":
        return run.training[Metric.BYTES_UP_TOTAL]
    if against == "seconds":
        return np.cumsum(run.training[Metric.MODELLED_SECONDS])
    if against == "epsilon":
        return run.training[Metric.EPSILON_PROVEN]
    return np.arange(run.rounds, dtype=np.float64)


def _together(runs: Sequence[Run], values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the values of the rounds in which all runs have a correct aggregate."""
    rounds = min(run.rounds for run in runs)
    kept = np.logical_and.reduce([run.validated[:rounds] for run in runs])
    return np.stack([found[:rounds][kept] for found in values])
