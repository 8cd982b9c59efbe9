"""Time and bytes of a round against the number of devices or of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.plots import naming
from hpcfl.plots.style import COLOURS, check_lines, legend_below, line_style, new_figure
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
# Repeats of a configuration differ in these at most.
_OF_A_REPEAT = ("seed",)
# Options that may follow from the number of devices.
_FOLLOWING = ("degree", "min_cohort")


@dataclass(frozen=True)
class _Panel:
    """One of the four panels."""

    label: str
    samples: Callable[[Run], NDArray[np.float64]]  # a value for every measured round of a run
    powers: dict[str, int]  # of N and of d that are ideal


def lacking(run: Run, **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    if not run.measured.any():
        return "has no measured round"
    if not isinstance(run.config.get("dim"), int):
        return "does not record the option dim"
    return None


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
    for one, panel in zip(axes, _panels(link), strict=True):
        for number, (label, members) in enumerate(series.items()):
            _draw_line(one, panel, number, label, members, against)
        one.set(xscale="log", yscale="log", xlabel=AXES[against], ylabel=panel.label)
        one.grid(alpha=0.3, which="both", linewidth=0.5)
        one.tick_params(axis="y", which="both", labelsize=8)
        _plain_ticks(one, sorted({_across(run, against) for run in runs}))
    axes[0].plot([], [], color="0.5", linewidth=0.8, label=_IDEAL[against])
    figure.suptitle(_title(runs, against), fontsize=10)
    legend_below(figure, axes[0])
    return figure


def _panels(link: LinkModel) -> list[_Panel]:
    def all_bytes(run: Run) -> NDArray[np.float64]:
        return run.bytes_up[run.measured].sum(axis=(1, 2)).astype(np.float64)

    rate = f"{link.uplink_mbps:g}/{link.downlink_mbps:g} Mbit/s, {link.latency_ms:g} ms"
    return [
        _Panel(
            "round, measured, s",
            lambda run: run.round_seconds[run.measured],
            {"devices": 1, "dim": 1},
        ),
        _Panel(
            f"round, modelled at\n{rate}, s",
            lambda run: run.modelled_seconds(link).sum(axis=1),
            {"devices": 1, "dim": 1},
        ),
        _Panel(
            "sent up by a survivor, B",
            lambda run: np.nan_to_num(run.survivor_bytes()),
            {"devices": 0, "dim": 1},
        ),
        _Panel("sent up by all devices, B", all_bytes, {"devices": 1, "dim": 1}),
    ]


def _series(runs: Sequence[Run], against: str) -> dict[str, list[Run]]:
    """Return the runs of each line, under its name."""
    options = tuple(name for name in naming.TOLD_APART if name not in _OF_A_REPEAT)
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
    options = tuple(name for name in options if name not in fixed)
    differing = naming.differing(runs, options)
    apart = len({_across(run, other) for run in runs}) > 1
    series: dict[str, list[Run]] = {}
    for run in runs:
        parts = [naming.named(run), *naming.words(run, differing)]
        if apart:
            parts.insert(1, f"{AXES[other][-1]} = {_across(run, other):,}")
        if len(set(map(_transport, runs))) > 1:
            parts.append(_transport(run))
        series.setdefault(", ".join(parts), []).append(run)
    check_lines(len(series))
    return series


def _transport(run: Run) -> str:
    return str(run.environment.get("transport") or "transport not recorded")


def _across(run: Run, against: str) -> int:
    return run.devices if against == "devices" else run.dim


def _draw_line(
    axes: Axes, panel: _Panel, number: int, label: str, members: list[Run], against: str
) -> None:
    places = np.array(sorted({_across(run, against) for run in members}))
    pooled = [
        np.concatenate([panel.samples(run) for run in members if _across(run, against) == place])
        for place in places
    ]
    medians = np.array([np.median(samples) for samples in pooled])
    intervals = [median_interval(samples) for samples in pooled]
    ends = np.array(
        [
            [end.low, end.high] if end.known else [m, m]
            for end, m in zip(intervals, medians, strict=True)
        ]
    ).T
    reach = np.abs(ends - medians)
    style = line_style(number, places.size) | {"markevery": 1}
    axes.errorbar(places, medians, reach, label=label, capsize=2.5, elinewidth=1, **style)
    if places.size > 1:
        ideal = medians[0] * (places / places[0]) ** panel.powers[against]
        axes.plot(places, ideal, color=COLOURS[number % len(COLOURS)], linewidth=0.6, alpha=0.6)


def _plain_ticks(axes: Axes, places: list[int]) -> None:
    """Mark the numbers that were measured, where there are few, instead of powers of ten."""
    from matplotlib.ticker import NullFormatter, NullLocator

    if len(places) <= 8:
        axes.set_xticks(places, [f"{place:,}" for place in places], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _title(runs: Sequence[Run], against: str) -> str:
    other = "dim" if against == "devices" else "devices"
    values = {_across(run, other) for run in runs}
    if len(values) > 1:
        return ""
    return f"{AXES[other][-1]} = {values.pop():,}; medians with 95 % intervals"
