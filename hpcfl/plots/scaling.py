"""Time and bytes of a round against the number of devices, parameters, ranks, nodes or threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.options.report import SCALES
from hpcfl.plots import PlotOptions, looks, naming
from hpcfl.plots.style import GUIDE, finish, lacking_rounds, leave_room, new_figure, places, ticks
from hpcfl.results import scaling
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.statistics import median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"devices": "devices N", "dim": "parameters d", **SCALES}
# Options that may depend on the number of devices.
_FOLLOWING = ("degree", "min_cohort")


def lacking(run: Run, asked: PlotOptions) -> str | None:
    """Return the reason why a run cannot be drawn, None if it can."""
    if asked.against in SCALES:
        return scaling.lacking(run, asked.against)
    return lacking_rounds(run)


def draw(runs: Sequence[Run], asked: PlotOptions) -> Figure:
    """Return six panels: seconds measured and modelled, CPU seconds, and bytes of a round.

    CPU seconds are those of the slowest device and of the server, bytes those of one device and of
    all. Both axes are logarithmic. A line is a protocol with its options. A point is the median
    over all measured rounds of the runs with the same number of devices and parameters, with its
    95 % interval if there are enough rounds. A grey line amid the points shows proportional cost.
    Raise UsageError for runs with different links, whose modelled seconds are not comparable.
    Against one of `SCALES` a line is one of :func:`hpcfl.results.scaling.lines`.
    """
    against = asked.against or "devices"
    runs = naming.pooled(runs)
    links = {run.link() for run in runs}
    if len(links) > 1:
        raise UsageError(
            "the runs were made for different links, so their modelled times cannot be drawn "
            "together: draw them apart"
        )
    (link,) = links
    lines = _lines(runs, against)
    looked = looks.of_lines((naming.named(of_one[0]), name) for name, of_one in lines.items())
    quantities = _quantities(link)
    figure, axes = new_figure(asked, len(quantities), height=1.7)
    for one, (title, samples) in zip(axes, quantities.items(), strict=True):
        one.set(title=title, xscale="log", yscale="log", xlabel=AXES[against])
        points = {name: _points(of_one, samples, against) for name, of_one in lines.items()}
        for name, of_line in points.items():
            look = looked[name].curve()
            one.errorbar(*of_line, **look, capsize=2, elinewidth=0.8)
            one.plot([], [], label=name, **look)
        across, up, _ = (np.concatenate(parts) for parts in zip(*points.values(), strict=True))
        if against not in SCALES:
            # What one device sends does not grow with their number.
            level = against == "devices" and title == "sent up by a survivor"
            _draw_guide(one, across, up, power=0 if level else 1)
        leave_room(one.yaxis)
        places(one.xaxis, sorted(set(across.tolist())))
        ticks(one.yaxis, "B" if "sent" in title else "s")
    said = [naming.common(runs), "medians, 95 % intervals", f"modelled at {naming.rates(link)}"]
    finish(figure, asked, said, *axes)
    return figure


def _lines(runs: Sequence[Run], against: str) -> dict[str, list[Run]]:
    """Return the runs of each line by its name."""
    if against in SCALES:
        found = scaling.lines(runs, against)
        firsts = [line[0] for line in found]
        names = naming.unique(firsts, naming.labels(firsts, without=("seed",)))
        return dict(sorted(zip(names, found, strict=True)))
    lines: dict[str, list[Run]] = {}
    names = naming.labels(runs, without=_without(runs, against), more=("transport",))
    for name, run in sorted(zip(names, runs, strict=True), key=lambda pair: pair[0]):
        lines.setdefault(name, []).append(run)
    return lines


def _across(run: Run, against: str) -> int:
    """Return where a run is on the x axis."""
    return scaling.resources(run, against) if against in SCALES else int(getattr(run, against))


def _without(runs: Sequence[Run], against: str) -> list[str]:
    """Return the options that do not distinguish lines.

    An option that depends on the number of devices changes along a line, but not at one place.
    """
    at: dict[tuple[str, int, int], list[Run]] = {}
    for run in runs:
        at.setdefault((naming.named(run), run.devices, run.dim), []).append(run)
    following = [
        name
        for name in _FOLLOWING
        if not any(naming.several(of_one, name) for of_one in at.values())
    ]
    return [against, "seed", *following]


def _quantities(link: LinkModel) -> dict[str, Callable[[Run], NDArray[np.float64]]]:
    """Return each panel's title and a function that returns a value for every measured round."""
    return {
        "round, measured": lambda run: run.round_seconds[run.measured],
        "round, modelled": lambda run: run.modelled_seconds(link).sum(axis=1),
        "CPU of the slowest device": lambda run: _known(
            run, lambda role: run.slowest_cpu_seconds(role)[:, -1]
        ),
        "CPU of the server": lambda run: run.cpu_seconds[run.measured].sum(axis=1)[:, -1],
        "sent up by a survivor": lambda run: _known(run, run.survivor_bytes),
        "sent up by all devices": lambda run: run.bytes_up[run.measured].sum(
            axis=(1, 2), dtype=float
        ),
    }


def _known(run: Run, values: Callable[[str], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the values of devices, or of members if all devices are in the committee."""
    found = values("device")
    if run.in_committee.any() and np.isnan(found).all():
        found = values("member")
    return found[~np.isnan(found)]


def _points(
    runs: Sequence[Run], samples: Callable[[Run], NDArray[np.float64]], against: str
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the x and y values of a line's points, and the lengths of their error bars."""
    pooled: dict[int, list[NDArray[np.float64]]] = {}
    for run in sorted(runs, key=lambda run: _across(run, against)):
        pooled.setdefault(_across(run, against), []).append(samples(run))
    medians, ends = [], []
    for found in map(np.concatenate, pooled.values()):
        interval = median_interval(found)
        # A logarithmic axis has no place for values that are not above 0.
        medians.append(float(np.median(found)) if (found > 0).any() else np.nan)
        ends.append([interval.low, interval.high])
    return np.array([*pooled]), np.array(medians), np.abs(np.array(ends).T - medians)


def _draw_guide(axes: Axes, across: NDArray[np.int64], up: NDArray[np.float64], power: int) -> None:
    """Draw a line amid all points: cost in proportion to the x axis, or constant for power 0."""
    across, up = across[np.isfinite(up)], up[np.isfinite(up)]
    if len(set(across.tolist())) > 1:
        level = np.exp(np.mean(np.log(up) - power * np.log(across)))
        ends = np.array([across.min(), across.max()], float)
        words = f"proportional to {axes.get_xlabel()[-1]}" if power else None
        axes.plot(ends, level * ends**power, label=words, **GUIDE)
