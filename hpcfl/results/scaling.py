"""Speed-up and parallel efficiency: how runs get faster with more ranks, nodes or threads.

Everything that compares a round on few with a round on many is computed here, once, for tables and
figures alike. With x resources, a round of N devices and d coordinates that takes T seconds does
the work W = N d. Against the base, the fewest resources that were measured,

    speed-up(x)   = (W_x / T_x) / (W_base / T_base)
    efficiency(x) = speed-up(x) x_base / x

In strong scaling W is the same everywhere, and the speed-up is T_base / T_x; in weak scaling W / x
is, and the efficiency is T_base / T_x (Gustafson 1988). T is the median of the measured rounds. The
interval of an efficiency takes both medians' intervals at 97.5 % each, so that both hold, and with
them that of the ratio, with a probability of 95 % or more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names
from hpcfl.options.report import SCALES
from hpcfl.report import formats
from hpcfl.report.table import RULE, Column, Table, label, seconds
from hpcfl.results import pooling, summary
from hpcfl.results.reader import Run
from hpcfl.results.record import Floats
from hpcfl.results.statistics import UNKNOWN, Interval, median_interval

Mode = Literal["strong", "weak", "one point"]

# Of each of the two medians of a ratio.
_CONFIDENCE = 0.975
# What of a machine grows with the ranks, or says where they are; all else is the same along a line.
_GROWS = {
    *("transport", "ranks", "host_ranks", "mapping", "binding", "networks"),
    *("cores_usable", "fault_tolerance"),
}
# Options that leave the work of a round as it is.
_FREE = {*names(BenchOptions, "repeat"), *names(BenchOptions, "repeat if any")}


def lacking(run: Run, against: str) -> str | None:
    """Return in words why a run is no point of a table or figure of scaling, None if it is one."""
    ranks, hosts = run.environment.get("ranks"), run.environment.get("host_ranks") or []
    if run.training or not run.measured.any() or ranks is None:
        return "is not of hpcfl bench with measured rounds and a known number of ranks"
    if against in ("ranks", "nodes") and ranks == 1:
        return "is of one process, where nothing is sent and nobody waits: start it by mpirun -n"
    if against == "nodes" and len({*hosts}) != 1:
        return "does not record as many ranks on each of its nodes"
    return None


@dataclass(frozen=True, repr=False, eq=False)
class Point:
    """A place on a line: rounds on so many resources."""

    x: int  # resources
    ranks: int  # of the job, the server's and helpers' among them
    devices: int
    dim: int
    samples: Floats  # seconds of the measured rounds
    cpu_seconds: float  # of all parties of a round together, median
    # Whether ranks, or their threads, shared cores; None where that is not recorded.
    oversubscribed: bool | None
    speed_up: float = math.nan
    efficiency: float = math.nan
    efficiency_interval: Interval = UNKNOWN

    @property
    def seconds(self) -> float:
        """Median of a round."""
        return float(np.median(self.samples))

    @property
    def interval(self) -> Interval:
        """95 % interval of that median."""
        return median_interval(self.samples)

    @property
    def counts(self) -> bool:
        """Whether it can have an efficiency."""
        return self.oversubscribed is False and self.seconds > 0


@dataclass(frozen=True, repr=False)
class Line:
    """The points of one configuration, by their resources."""

    protocol: str  # as looks and names know it
    name: str  # what it is called beside the others
    mode: Mode
    points: tuple[Point, ...]

    @property
    def base(self) -> Point | None:
        """The point that the others are compared with; None where there is none."""
        return next((point for point in self.points if point.counts), None)


@dataclass(frozen=True)
class Study:
    """Lines over one kind of resource, all of them strong scaling or all of them weak."""

    against: str  # one of `SCALES`
    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        """What all lines of several points are."""
        return next((one.mode for one in self.lines if one.mode != "one point"), "one point")

    @property
    def fixed(self) -> str:
        """What is the same at all points, in words."""
        if self.mode == "one point":
            return "one point a line"
        each = "the ranks that hold devices" if self.against == "nodes" else SCALES[self.against]
        same = (
            "the same N and d everywhere"
            if self.mode == "strong"
            else f"as much for each of {each}"
        )
        return f"{self.mode} scaling: {same}"


def study(runs: Sequence[Run], against: str) -> Study:
    """Return runs as lines over one of `SCALES`, with speed-up and efficiency.

    The runs are benchmarks that :func:`lacking` finds nothing wrong with; those of one
    configuration and machine are a line, on equal resources a point. It is a UsageError if N or d
    of a line are neither the same nor so many for each resource, and if some lines are of strong
    scaling and some of weak.
    """
    groups = _groups(runs, against)
    named = zip(_names(groups, against), groups, strict=True)
    lines = sorted((_line(*one, against) for one in named), key=lambda line: line.name)
    modes = {line.mode: line.name for line in lines if line.mode != "one point"}
    if len(modes) > 1:
        raise UsageError(
            f"{modes['strong']} has the same N and d everywhere (strong scaling) and "
            f"{modes['weak']} has more with more {SCALES[against]} (weak scaling): show them apart"
        )
    return Study(against, tuple(lines), summary.warnings(runs))


def resources(run: Run, against: str) -> int:
    """Return how many resources a run had; for ranks, those that held devices."""
    if against == "nodes":
        return len(run.environment["host_ranks"])
    if against == "server-ranks":
        return run.server_ranks
    if against == "threads":
        return int(run.config.get("threads") or 1)
    ranks = int(run.environment["ranks"])
    return 1 if ranks == 1 else min(run.devices, ranks - run.server_ranks - run.helpers)


def _line_of(run: Run, against: str) -> dict[str, Any]:
    """Return what is the same along a line: options and machine, but for what grows.

    Ranks are part of it where these are not the scale.
    """
    asked = run.config if run.asked is None else run.asked
    varied = {"devices", "dim", against.replace("-", "_")}
    found = {name: value for name, value in asked.items() if name not in _FREE | varied}
    found |= {name: fact for name, fact in pooling.machine(run).items() if name not in _GROWS}
    if against not in ("ranks", "nodes"):
        found["ranks"] = int(run.environment["ranks"])
    return {"protocol": run.protocol, **found}


def _groups(runs: Sequence[Run], against: str) -> list[list[Run]]:
    """Return the runs of each line: those of equal options, and of one size if sizes vary in x."""
    alike: dict[str, dict[tuple[int, int], list[Run]]] = {}
    for run in runs:
        key = json.dumps(_line_of(run, against), sort_keys=True, default=str)
        alike.setdefault(key, {}).setdefault((run.devices, run.dim), []).append(run)
    found = []
    for sizes in alike.values():
        strong = all(len({resources(run, against) for run in one}) > 1 for one in sizes.values())
        found += [*sizes.values()] if strong else [[run for one in sizes.values() for run in one]]
    return found


def _names(groups: Sequence[Sequence[Run]], against: str) -> list[str]:
    """Return what each line is called: its protocol, and what it differs in from others of it."""
    facts = []
    for members in groups:
        known = _line_of(members[0], against)
        if len({(run.devices, run.dim) for run in members}) == 1:
            known |= {"N =": members[0].devices, "d =": members[0].dim}
        facts.append(known)
    found = []
    for known in facts:
        others = [one for one in facts if one["protocol"] == known["protocol"]]
        differing = [name for name in known if len({str(one.get(name)) for one in others}) > 1]
        told = (f"{name.replace('_', ' ')} {formats.words(known[name])}" for name in differing)
        found.append(", ".join([known["protocol"], *told]))
    return found


def _line(name: str, members: Sequence[Run], against: str) -> Line:
    """Return a line with speed-up and efficiency against its base, where it has one."""
    places: dict[tuple[int, int, int], list[Run]] = {}
    for run in members:
        places.setdefault((resources(run, against), run.devices, run.dim), []).append(run)
    points = tuple(_point(x, places[x, devices, dim]) for x, devices, dim in sorted(places))
    line = Line(members[0].protocol, name, _mode(name, points, members, against), points)
    base = line.base
    if base is None:
        return line
    return replace(line, points=tuple(_against(point, base) for point in points))


def _point(x: int, runs: Sequence[Run]) -> Point:
    shared: set[bool | None] = set()
    for one in runs:
        ratio = one.environment.get("oversubscription_ratio")
        shared.add(None if ratio is None else ratio * resources(one, "threads") > 1)
    return Point(
        x,
        int(runs[0].environment["ranks"]),
        runs[0].devices,
        runs[0].dim,
        np.concatenate([one.round_seconds[one.measured] for one in runs]),
        float(np.median(np.concatenate([summary.everybodys_cpu_seconds(one) for one in runs]))),
        True if True in shared else None if None in shared else False,
    )


def _against(point: Point, base: Point) -> Point:
    if not point.counts:
        return point
    factor = point.devices * point.dim / (base.devices * base.dim)
    share = base.x / point.x
    interval = UNKNOWN  # of the base itself: it is 1 by what it is
    if point is not base:
        above, below = (median_interval(one.samples, _CONFIDENCE) for one in (base, point))
        low, high = above.low / below.high, above.high / below.low
        interval = Interval(share * factor * low, share * factor * high)
    speed_up = factor * base.seconds / point.seconds
    return replace(
        point, speed_up=speed_up, efficiency=speed_up * share, efficiency_interval=interval
    )


def _mode(name: str, points: Sequence[Point], members: Sequence[Run], against: str) -> Mode:
    """Return what a line is; UsageError if it is neither strong nor weak scaling."""
    if len({(p.devices, p.dim) for p in points}) == 1:
        return "strong" if len(points) > 1 else "one point"
    # Each resource has as much to do: devices of a rank, or coordinates.
    if against in ("ranks", "nodes"):
        loads = {(run.devices / resources(run, "ranks"), run.dim) for run in members}
    else:
        loads = {(run.dim / resources(run, against), run.devices) for run in members}
    if len(loads) == 1:
        return "weak"
    raise UsageError(
        f"{name}: N and d are neither the same for all numbers of {SCALES[against]} (strong "
        "scaling) nor so many for each (weak scaling): choose runs with --where"
    )


def table(found: Study) -> Table:
    """Return a row for each point of each line."""
    columns = [
        label("line"),
        Column("x", SCALES[found.against], format=formats.count),
        label("state"),
        Column("ranks", "all ranks", format=formats.count),
        Column("devices", "N", format=formats.count),
        Column("dim", "d", format=formats.count),
        seconds("round_seconds", "round"),
        seconds("round_seconds_low", "round from"),
        seconds("round_seconds_high", "round to"),
        Column("speed_up", "speed-up", format=formats.number),
        Column("efficiency", "efficiency", format=formats.number),
        Column("efficiency_low", "efficiency from", format=formats.number),
        Column("efficiency_high", "efficiency to", format=formats.number),
        seconds("all_cpu_seconds", "all CPU"),
    ]
    rows: list[Any] = []
    for line in found.lines:
        rows += [RULE] if rows else []
        rows += [_row(line, point) for point in line.points]
    return Table(
        columns,
        rows,
        f"Scaling over {SCALES[found.against]}; {found.fixed}",
        [
            "round: median elapsed seconds of the measured rounds, from and to: its 95 % interval; "
            "all CPU: of all devices, helpers and the server together",
            "speed-up: work (N times d) a second over that of the base, the line's first point "
            "with an efficiency; efficiency: speed-up over how many times as many there are",
            "neither is given where ranks or their threads share cores, or files do not tell",
            *(f"warning: {sentence}" for sentence in found.warnings),
        ],
    )


_STATES = {
    False: "measured",
    True: "measured, oversubscribed",
    None: "measured, cores unknown",
}


def _row(line: Line, point: Point) -> list[Any]:
    return [
        *(line.name, point.x, _STATES[point.oversubscribed]),
        *(point.ranks, point.devices, point.dim),
        *(point.seconds, point.interval.low, point.interval.high),
        *(point.speed_up, point.efficiency),
        *(point.efficiency_interval.low, point.efficiency_interval.high),
        point.cpu_seconds,
    ]
