"""Time and bytes of a round against the number of devices or of parameters.

Against ranks, nodes or threads it is another figure, of speed-up and efficiency:
:mod:`hpcfl.plots.speedup`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.options.scaling import SCALES
from hpcfl.plots import looks, naming, speedup
from hpcfl.plots.style import (
    BYTES,
    PLAIN,
    SECONDS,
    Frame,
    lacking_rounds,
    leave_room,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
    wrapped,
)
from hpcfl.results import scaling
from hpcfl.results.columns import TOLD_APART
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.scaling import Study
from hpcfl.results.statistics import median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"devices": "devices N", "dim": "parameters d"}
# Options that may follow from the number of devices.
_FOLLOWING = ("degree", "min_cohort")
# Points at one place are this factor apart.
_APART = 1.06


@dataclass(frozen=True)
class _Quantity:
    """What a panel shows."""

    name: str
    units: Mapping[str, float]
    samples: Callable[[Run], NDArray[np.float64]]  # one for every measured round
    grows: bool = True  # with the number of devices


def _as_measured(study: Study) -> Study:
    return study


def lacking(run: Run, against: str = "devices", **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    if against in SCALES:
        return scaling.lacking(run, against)
    if not isinstance(run.config.get("dim"), int):
        return lacking_rounds(run) or "does not record the option dim"
    return lacking_rounds(run)


def draw(
    runs: Sequence[Run],
    frame: Frame = PLAIN,
    against: str = "devices",
    continued: Callable[[Study], Study] = _as_measured,
) -> Figure:
    """Return six panels: seconds measured and modelled, CPU seconds, and bytes of a round.

    CPU seconds are those of the slowest device and of the server, bytes those of one device and of
    all. Both axes are logarithmic. A line is a protocol with its options; a point is the median
    over all measured rounds of the runs with the same number of devices and parameters, with its
    95 % interval where there are enough rounds. A grey line amid the points says what proportional
    cost would be. Runs for different links are a UsageError: their modelled seconds do not go
    together.

    Against one of `SCALES` they are the panels of :func:`hpcfl.plots.speedup.draw`, of the study
    that `continued` returns.
    """
    if against in SCALES:
        return speedup.draw(continued(scaling.study(runs, against)), frame)
    links = {run.link() for run in runs}
    if len(links) > 1:
        raise UsageError(
            "the runs were made for different links, so their modelled times cannot be drawn "
            "together: draw them apart"
        )
    (link,) = links
    series = _series(runs, frame, against)
    looked = looks.of_lines((naming.named(of_one[0]), name) for name, of_one in series.items())
    quantities = _quantities(link)
    figure, axes = new_figure(frame, len(quantities), height=1.7, narrowest=1.6)
    known = [
        _draw_panel(one, quantity, series, looked, against)
        for one, quantity in zip(axes, quantities, strict=True)
    ]
    other = "dim" if against == "devices" else "devices"
    values = {getattr(run, other) for run in runs}
    shown = [
        *naming.usual(runs, _told_apart(runs)),
        _summed_up(runs, any(known)),
        f"modelled at {naming.rates(link)}",
    ]
    if len(values) == 1:
        shown.insert(0, f"{AXES[other][-1]} = {values.pop():,}")
    set_title(figure, frame, "; ".join(shown))
    legend_below(figure, frame, *axes)
    return figure


def _summed_up(runs: Sequence[Run], with_intervals: bool) -> str:
    """Return in words what points are."""
    most = max(int(run.measured.sum()) for run in runs)
    if with_intervals:
        return "medians with 95 % intervals"
    return "medians" if most > 1 else "of one round each"


def _draw_panel(
    axes: Axes,
    quantity: _Quantity,
    series: Mapping[str, list[Run]],
    looked: Mapping[str, looks.Look],
    against: str,
) -> bool:
    """Draw a line for each series; return whether there is an interval on any of them."""
    points = {name: _points(members, quantity.samples, against) for name, members in series.items()}
    drawn = [(places, medians) for places, medians, _ in points.values()]
    everywhere, everything = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    unit, name = unit_of(everything, quantity.units)
    at_one_place = len(set(everywhere.tolist())) == 1
    intervals = False
    for number, (label, (places, medians, reach)) in enumerate(points.items()):
        beside = _APART ** (number - (len(points) - 1) / 2) if at_one_place else 1.0
        look = looked[label].curve(places.size) | {"markevery": 1}
        reach = np.where(medians > 0, reach, 0.0)
        intervals |= bool(np.isfinite(reach).any())
        axes.errorbar(
            *(places * beside, np.where(medians > 0, medians, np.nan) / unit, reach / unit),
            **look,
            capsize=2,
            elinewidth=0.8,
        )
        axes.plot([], [], label=label, **look)
    axes.set(xscale="log", yscale="log", xlabel=AXES[against])
    axes.set_title(wrapped(axes, f"{quantity.name}, {name}"))
    spec = axes.get_subplotspec()
    if spec is not None and not spec.is_last_row():
        axes.set_xlabel("")
        axes.tick_params(axis="x", labelbottom=False)
    leave_room(axes)
    if not at_one_place:
        # What one device sends does not grow with their number.
        power = 0 if against == "devices" and not quantity.grows else 1
        _draw_guide(axes, everywhere, everything / unit, power, against)
    axes.grid(alpha=0.3)
    readable_ticks(axes, sorted(set(everywhere.tolist())))
    return intervals


def _draw_guide(
    axes: Axes,
    places: NDArray[np.int64],
    values: NDArray[np.float64],
    power: int,
    against: str,
) -> None:
    """Draw what is proportional to the places, or level, amid all the points."""
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return
    level = math.exp(float(np.mean(np.log(values[known]) - power * np.log(places[known]))))
    ends = np.array([places.min(), places.max()], float)
    words = f"proportional to {AXES[against][-1]}" if power else None
    axes.plot(
        ends,
        level * ends**power,
        color="0.85",
        linewidth=2.5,
        zorder=0,
        label=words,
        scaley=False,
    )


def _quantities(link: LinkModel) -> list[_Quantity]:
    return [
        _Quantity("round, measured", SECONDS, lambda run: run.round_seconds[run.measured]),
        _Quantity(
            "round, modelled",
            SECONDS,
            lambda run: run.modelled_seconds(link).sum(axis=1),
        ),
        _Quantity("CPU of the slowest device", SECONDS, _cpu_of_a_device),
        _Quantity(
            "CPU of the server",
            SECONDS,
            lambda run: run.cpu_seconds[run.measured].sum(axis=1)[:, -1],
        ),
        _Quantity("sent up by a survivor", BYTES, _of_a_survivor, grows=False),
        _Quantity(
            "sent up by all devices",
            BYTES,
            lambda run: run.bytes_up[run.measured].sum(axis=(1, 2), dtype=float),
        ),
    ]


def _cpu_of_a_device(run: Run) -> NDArray[np.float64]:
    """Return the CPU seconds of the slowest device, or member where all are of the committee."""
    found = run.slowest_cpu_seconds("device")[:, -1]
    if run.in_committee is not None and np.isnan(found).all():
        found = run.slowest_cpu_seconds("member")[:, -1]
    return found[~np.isnan(found)]


def _of_a_survivor(run: Run) -> NDArray[np.float64]:
    """Return what a device in the aggregate sent, or a member where all are of the committee."""
    sent = run.survivor_bytes()
    if run.in_committee is not None and np.isnan(sent).all():
        sent = run.survivor_bytes("member")
    return sent[~np.isnan(sent)]


def _told_apart(runs: Sequence[Run]) -> list[str]:
    """Return the options by which lines are told apart."""
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
    options = [name for name in TOLD_APART if name not in fixed | {"seed"}]
    return naming.differing(runs, options)


def _series(runs: Sequence[Run], frame: Frame, against: str) -> dict[str, list[Run]]:
    """Return the runs of each line, under its name."""
    other = "dim" if against == "devices" else "devices"
    differing = _told_apart(runs)
    apart = len({getattr(run, other) for run in runs}) > 1
    transports = [str(run.environment.get("transport") or "transport not recorded") for run in runs]
    series: dict[str, list[Run]] = {}
    told = naming.unusual(runs, differing)
    for run, settings, transport in zip(runs, told, transports, strict=True):
        parts = [naming.shown(run, frame.called), *settings]
        if apart:
            parts.insert(1, f"{AXES[other][-1]} = {getattr(run, other):,}")
        if len(set(transports)) > 1:
            parts.append(transport)
        series.setdefault(", ".join(parts), []).append(run)
    return dict(sorted(series.items()))


def _points(
    members: list[Run], samples: Callable[[Run], NDArray[np.float64]], against: str
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return where the points of a line are, across and up, and how far their intervals reach.

    What is not known is NaN.
    """
    pooled: dict[int, list[NDArray[np.float64]]] = {}
    for run in sorted(members, key=lambda run: getattr(run, against)):
        pooled.setdefault(getattr(run, against), []).append(samples(run).astype(np.float64))
    medians, ends = [], []
    for found in map(np.concatenate, pooled.values()):
        interval = median_interval(found)
        medians.append(np.median(found) if found.size else np.nan)
        ends.append([interval.low, interval.high])
    return np.array(list(pooled)), np.array(medians), np.abs(np.array(ends).T - medians)
