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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names
from hpcfl.options.report import SCALES
from hpcfl.report import brief, formats
from hpcfl.report.formats import counted
from hpcfl.report.table import RULE, Column, Table, label, seconds
from hpcfl.results import pooling
from hpcfl.results.reader import Run
from hpcfl.results.statistics import UNKNOWN, Interval, median_interval
from hpcfl.results.summary import everybodys_cpu_seconds
from hpcfl.system import disturbances

Mode = Literal["strong", "weak", "one point"]

# Of each of the two medians of a ratio.
_CONFIDENCE = 0.975
# What of a machine grows with the ranks, or says where they are; all else is to be the same.
_GROWS = {
    *("transport", "ranks", "host_ranks", "mapping", "binding", "networks"),
    *("cores_usable", "fault_tolerance"),
}
# Options that leave the work of a round as it is.
_FREE = {*names(BenchOptions, "repeat"), *names(BenchOptions, "repeat if any")}


def lacking(run: Run, against: str) -> str | None:
    """Return in words why a run is no point of a table or figure of scaling, None if it is one."""
    if run.training:
        return "is of training: speed-up is that of the rounds of hpcfl bench"
    if not run.measured.any():
        return "has no measured round"
    if run.environment.get("ranks") is None:
        return "does not record how many ranks it had"
    if against in ("ranks", "nodes") and run.environment["ranks"] == 1:
        return "is of one process, where nothing is sent and nobody waits: start it by mpirun -n"
    if against == "nodes" and len({*(run.environment.get("host_ranks") or [])}) != 1:
        return "does not record as many ranks on each of its nodes"
    return None


@dataclass(frozen=True)
class Point:
    """A place on a line: rounds on so many resources."""

    x: int  # resources
    ranks: int  # of the job, the server's and helpers' among them
    devices: int
    dim: int
    seconds: float  # of a round, the median
    interval: Interval  # 95 %, of that median
    wide: Interval  # 97.5 %, for ratios
    cpu_seconds: float  # of all parties of a round together, median
    rounds: int  # measured ones
    # Whether ranks, or their threads, shared cores; None where that is not recorded.
    oversubscribed: bool | None
    speed_up: float = math.nan
    efficiency: float = math.nan
    efficiency_interval: Interval = UNKNOWN


@dataclass(frozen=True, repr=False)
class Line:
    """The points of one configuration, by their resources."""

    protocol: str  # as looks and names know it
    name: str  # what it is called beside the others
    mode: Mode
    points: tuple[Point, ...]

    def __repr__(self) -> str:
        points = counted(len(self.points), "point")
        return brief.line("Line", self.name, self.mode, points)

    @property
    def base(self) -> Point | None:
        """The point that the others are compared with; None where there is none."""
        return next((p for p in self.points if p.oversubscribed is False and p.seconds > 0), None)


@dataclass(frozen=True)
class Study:
    """Lines over one kind of resource, all of them strong scaling or all of them weak."""

    against: str  # one of `SCALES`
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        """What all lines of several points are."""
        return next((one.mode for one in self.lines if one.mode != "one point"), "one point")

    @property
    def fixed(self) -> str:
        """What is the same at all points, in words."""
        if self.mode == "strong":
            return "strong scaling: the same N and d everywhere"
        if self.mode == "weak":
            if self.against in ("ranks", "nodes"):
                return "weak scaling: as many devices for each of the ranks that hold devices"
            return f"weak scaling: as many coordinates for each of the {SCALES[self.against]}"
        return "one point a line"


def study(runs: Sequence[Run], against: str) -> Study:
    """Return runs as lines over one of `SCALES`, with speed-up and efficiency.

    The runs are benchmarks that :func:`lacking` finds nothing wrong with; those of one
    configuration on equal resources are pooled. It is a UsageError if they do not go together:
    other machines or versions, N or d that are neither the same nor so many for each resource, some
    lines strong and some weak.
    """
    _refuse_other_machines(runs)
    groups = _groups(runs, against)
    lines = [
        _line(name, members, against)
        for name, members in zip(_names(groups, against), groups, strict=True)
    ]
    lines.sort(key=lambda line: line.name)
    modes = {line.mode: line.name for line in lines if line.mode != "one point"}
    if len(modes) > 1:
        raise UsageError(
            f"{modes['strong']} has the same N and d everywhere (strong scaling) and "
            f"{modes['weak']} has more with more {SCALES[against]} (weak scaling): show them apart"
        )
    notes = []
    for line in lines:
        doubtful = [str(point.x) for point in line.points if point.oversubscribed is not False]
        if doubtful:
            notes.append(
                f"{line.name}: at {', '.join(doubtful)} {SCALES[against]} the ranks or their "
                "threads share cores, or files do not tell: seconds show the scheduler, so no "
                "speed-up and no efficiency are given; CPU seconds stay right"
            )
    return Study(against, tuple(lines), (*notes, *_disturbances(runs)))


def _disturbances(runs: Sequence[Run]) -> list[str]:
    """Return what else the machine did, by its kind; that ranks share cores is said elsewhere."""
    found: dict[str, list[str]] = {}
    for run in runs:
        known = [one for env in run.launches.values() for one in disturbances.found(env)]
        for kind, sentence in {one.kind: one.sentence for one in known}.items():
            if kind != "oversubscribed":
                found.setdefault(kind, []).append(sentence)
    return [
        f"warning: {counted(len(said), 'run')} disturbed, such as one by {said[0]}"
        for said in found.values()
    ]


def resources(run: Run, against: str) -> int:
    """Return how many resources a run had; for ranks, those that held devices."""
    if against == "nodes":
        return len(run.environment["host_ranks"])
    if against == "server-ranks":
        return run.server_ranks
    if against == "threads":
        return _threads(run)
    ranks = int(run.environment["ranks"])
    return 1 if ranks == 1 else min(run.devices, ranks - run.server_ranks - run.helpers)


def _threads(run: Run) -> int:
    return int(run.config.get("threads") or 1)


def _refuse_other_machines(runs: Sequence[Run]) -> None:
    """Refuse runs of different machines or software by UsageError."""
    first = runs[0]
    for run in runs[1:]:
        for name, (a, b) in pooling.differences(pooling.machine, first, run).items():
            if name in pooling.MACHINE and name not in _GROWS:
                one, other = (formats.words(value, nothing="none") for value in (a, b))
                raise UsageError(
                    f"{first.path.name} and {run.path.name} were not measured alike, so that what "
                    f"differs is not the scale alone: {name} is {one} and {other}; name the runs "
                    "of one machine and version"
                )


def _asked(run: Run, against: str) -> dict[str, Any]:
    """Return what was asked for, but for what may differ along a line.

    Ranks where these are not the scale.
    """
    asked = run.config if run.asked is None else run.asked
    varied = {"devices", "dim", against.replace("-", "_")}
    found = {name: value for name, value in asked.items() if name not in _FREE | varied}
    if against not in ("ranks", "nodes"):
        found["ranks"] = int(run.environment["ranks"])
    return {"protocol": run.protocol, **found}


def _groups(runs: Sequence[Run], against: str) -> list[list[Run]]:
    """Return the runs of each line: those of equal options, and of one size if sizes vary in x."""
    alike: dict[str, dict[tuple[int, int], list[Run]]] = {}
    for run in runs:
        key = json.dumps(_asked(run, against), sort_keys=True, default=str)
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
        known = _asked(members[0], against)
        if len({(run.devices, run.dim) for run in members}) == 1:
            known |= {"N": members[0].devices, "d": members[0].dim}
        facts.append(known)
    found = []
    for known in facts:
        others = [one for one in facts if one["protocol"] == known["protocol"]]
        differing = [name for name in known if len({str(one.get(name)) for one in others}) > 1]
        found.append(", ".join([known["protocol"], *(_told(one, known[one]) for one in differing)]))
    return found


def _told(name: str, value: Any) -> str:
    """Return an option, or a size, in words."""
    words = formats.words(value)
    return f"{name} = {words}" if name in ("N", "d") else f"{name.replace('_', ' ')} {words}"


def _line(name: str, members: Sequence[Run], against: str) -> Line:
    """Return a line with speed-up and efficiency against its base, where it has one."""
    places: dict[tuple[int, int, int], list[Run]] = {}
    for run in members:
        places.setdefault((resources(run, against), run.devices, run.dim), []).append(run)
    points = [_point(x, *places[x, devices, dim]) for x, devices, dim in sorted(places)]
    line = Line(members[0].protocol, name, _mode(name, points, members, against), tuple(points))
    base = line.base
    if base is None:
        return line
    return replace(line, points=tuple(_against(point, base) for point in points))


def _point(x: int, *runs: Run) -> Point:
    run = runs[0]
    taken = np.concatenate([one.round_seconds[one.measured] for one in runs])
    states = set()
    for one in runs:
        ratio = one.environment.get("oversubscription_ratio")
        states.add(None if ratio is None else bool(ratio * _threads(one) > 1))
    return Point(
        x,
        int(run.environment["ranks"]),
        run.devices,
        run.dim,
        float(np.median(taken)),
        median_interval(taken),
        median_interval(taken, _CONFIDENCE),
        float(np.median(np.concatenate([everybodys_cpu_seconds(one) for one in runs]))),
        taken.size,
        True if True in states else None if None in states else False,
    )


def _against(point: Point, base: Point) -> Point:
    if point.oversubscribed is not False or not point.seconds > 0:
        return point
    factor = point.devices * point.dim / (base.devices * base.dim)
    share = base.x / point.x
    speed_up = factor * base.seconds / point.seconds
    interval = UNKNOWN  # of the base itself: it is 1 by what it is
    if point is not base and point.wide.known and base.wide.known:
        low, high = base.wide.low / point.wide.high, base.wide.high / point.wide.low
        interval = Interval(share * factor * low, share * factor * high)
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
    shown = ", ".join(f"N = {p.devices} and d = {p.dim} on {p.x}" for p in points[:4])
    raise UsageError(
        f"{name}: {shown}{', ...' * (len(points) > 4)} {SCALES[against]} are neither the same N "
        "and d everywhere (strong scaling) nor so many for each (weak scaling): choose runs with "
        "--where"
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
            "with an efficiency; efficiency: speed-up over how many times as many there are; from "
            "and to: both medians' intervals together, 95 % or more",
            *found.notes,
        ],
    )


_STATES: Mapping[bool | None, str] = {
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
