"""Time and bytes of a round against the number of devices or of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots import naming
from hpcfl.plots.style import check_lines, lacking_rounds, legend_below, line_style, new_figure
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.statistics import median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"devices": "devices N", "dim": "parameters d"}
_IDEAL = {
    "devices": "proportional to N, or the same bytes a device, from the first point",
    "dim": "proportional to d, from the first point",
}
_ONE_DEVICE = "sent up by a survivor, B"
# Options that may follow from the number of devices.
_FOLLOWING = ("degree", "min_cohort")


def lacking(run: Run, **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    if not isinstance(run.config.get("dim"), int):
        return lacking_rounds(run) or "does not record the option dim"
    return lacking_rounds(run)


def draw(runs: Sequence[Run], against: str = "devices") -> Figure:
    """Return four panels: seconds of a round measured and modelled, bytes of one and all devices.

    Both axes are logarithmic. A line is a protocol with its options; a point is the median over all
    measured rounds of the runs with the same number of devices and parameters, with its 95 %
    interval where there are enough rounds. A thin line through the first point of each says what
    proportional cost would be; for the bytes of one device against N it is level. Runs for
    different links are a UsageError: their modelled seconds do not go together.
    """
    links = {run.link() for run in runs}
    if len(links) > 1:
        raise UsageError(
            "the runs were made for different links, so their modelled times cannot be drawn "
            "together: draw them apart"
        )
    (link,) = links
    series = _series(runs, against)
    figure, axes = new_figure(9.6, 6.4, columns=2, rows=2)
    panels = _panels(link)
    for one, (up, samples) in zip(axes, panels.items(), strict=True):
        # What one device sends does not grow with their number.
        power = 0 if against == "devices" and up == _ONE_DEVICE else 1
        for number, (label, members) in enumerate(series.items()):
            places, medians, reach = _points(members, samples, against)
            style = line_style(number, places.size) | {"markevery": 1}
            one.errorbar(places, medians, reach, label=label, capsize=2.5, elinewidth=1, **style)
            if places.size > 1:
                ideal = medians[0] * (places / places[0]) ** power
                one.plot(places, ideal, color=style["color"], linewidth=0.6, alpha=0.6)
        one.set(xscale="log", yscale="log", xlabel=AXES[against], ylabel=up)
        one.grid(alpha=0.3, which="both", linewidth=0.5)
        one.tick_params(axis="y", which="both", labelsize=8)
        _plain_ticks(one, sorted({getattr(run, against) for run in runs}))
    axes[0].plot([], [], color="0.5", linewidth=0.8, label=_IDEAL[against])
    other = "dim" if against == "devices" else "devices"
    values = {getattr(run, other) for run in runs}
    if len(values) == 1:
        fixed = f"{AXES[other][-1]} = {values.pop():,}"
        figure.suptitle(f"{fixed}; medians with 95 % intervals", fontsize=10)
    legend_below(figure, axes[0])
    return figure


def _panels(link: LinkModel) -> dict[str, Callable[[Run], NDArray[np.float64]]]:
    """Return what is up in each panel, with a value for every measured round of a run."""
    rate = f"{link.uplink_mbps:g}/{link.downlink_mbps:g} Mbit/s, {link.latency_ms:g} ms"
    return {
        "round, measured, s": lambda run: run.round_seconds[run.measured],
        f"round, modelled at\n{rate}, s": lambda run: run.modelled_seconds(link).sum(axis=1),
        _ONE_DEVICE: _of_a_survivor,
        "sent up by all devices, B": lambda run: run.bytes_up[run.measured].sum(axis=(1, 2)),
    }


def _of_a_survivor(run: Run) -> NDArray[np.float64]:
    """Return what a device in the aggregate sent, or a member where all are of the committee."""
    sent = run.survivor_bytes()
    if run.in_committee is not None and np.isnan(sent).all():
        sent = run.survivor_bytes("member")
    return sent[~np.isnan(sent)] if not np.isnan(sent).all() else np.zeros(sent.size)


def _series(runs: Sequence[Run], against: str) -> dict[str, list[Run]]:
    """Return the runs of each line, under its name."""
    other = "dim" if against == "devices" else "devices"
    places: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        places.setdefault((run.devices, run.dim), []).append(run)
    # What changes along a line only, and there by itself, makes no other line.
    fixed = {
        name
        for name in _FOLLOWING
        if not any(naming.differing(place, [name]) for place in places.values())
    }
    # Repeats of a configuration differ in their seed at most.
    options = [name for name in naming.TOLD_APART if name not in fixed | {"seed"}]
    differing = naming.differing(runs, options)
    apart = len({getattr(run, other) for run in runs}) > 1
    transports = [str(run.environment.get("transport") or "transport not recorded") for run in runs]
    series: dict[str, list[Run]] = {}
    for run, transport in zip(runs, transports, strict=True):
        parts = [naming.named(run), *naming.settings(run, differing)]
        if apart:
            parts.insert(1, f"{AXES[other][-1]} = {getattr(run, other):,}")
        if len(set(transports)) > 1:
            parts.append(transport)
        series.setdefault(", ".join(parts), []).append(run)
    check_lines(len(series))
    return series


def _points(
    members: list[Run], samples: Callable[[Run], NDArray[np.float64]], against: str
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return where the points of a line are, across and up, and how far their intervals reach."""
    pooled: dict[int, list[NDArray[np.float64]]] = {}
    for run in sorted(members, key=lambda run: getattr(run, against)):
        pooled.setdefault(getattr(run, against), []).append(samples(run).astype(np.float64))
    medians, ends = [], []
    for found in map(np.concatenate, pooled.values()):
        interval = median_interval(found)
        medians.append(np.median(found))
        ends.append([interval.low, interval.high] if interval.known else [medians[-1]] * 2)
    return np.array(list(pooled)), np.array(medians), np.abs(np.array(ends).T - medians)


def _plain_ticks(axes: Axes, places: list[int]) -> None:
    """Mark the numbers that were measured, where there are few, instead of powers of ten."""
    from matplotlib.ticker import NullFormatter, NullLocator

    if len(places) <= 8:
        axes.set_xticks(places, [f"{place:,}" for place in places], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
