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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names
from hpcfl.options.scaling import SCALES
from hpcfl.report import brief, formats
from hpcfl.report.formats import counted
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
_SAME = [name for name in pooling.MACHINE if name not in _GROWS]
# Options that leave the work of a round as it is.
_FREE = {*names(BenchOptions, "repeat"), *names(BenchOptions, "repeat if any")}


def lacking(run: Run, against: str) -> str | None:
    """Return in words why a run is no point of a table or figure of scaling, None if it is one."""
    if run.training:
        return "is of training: speed-up is that of the rounds of hpcfl bench"
    if run.config.get("dim") is None:
        return "does not record the option dim"
    if not run.measured.any():
        return "has no measured round"
    if run.environment.get("ranks") is None:
        return "does not record how many ranks it had"
    if against == "nodes" and not _ranks_of_hosts(run):
        return "does not record how many ranks each node had"
    return None


@dataclass(frozen=True)
class Point:
    """A place on a line: rounds on so many resources, measured or modelled."""

    x: int  # resources
    ranks: int  # of the job, the server's and helpers' among them
    devices: int
    dim: int
    seconds: float  # of a round: the median that was measured, or what is modelled
    interval: Interval = UNKNOWN  # 95 %, of that median
    wide: Interval = UNKNOWN  # 97.5 %, for ratios
    cpu_seconds: float = math.nan  # of all parties of a round together, median
    rounds: int = 0  # measured ones; 0 of what is modelled
    # Whether ranks, or their threads, shared cores; None where that is not recorded.
    oversubscribed: bool | None = False
    speed_up: float = math.nan
    efficiency: float = math.nan
    efficiency_interval: Interval = UNKNOWN

    @property
    def work(self) -> int:
        """Coordinates of all devices."""
        return self.devices * self.dim


@dataclass(frozen=True, repr=False)
class Line:
    """The points of one configuration, by their resources."""

    protocol: str  # as looks and names know it
    name: str  # what it is called beside the others
    mode: Mode
    points: tuple[Point, ...]
    run: Run  # the first of its runs, for its options
    modelled: tuple[Point, ...] = ()

    def __repr__(self) -> str:
        points = counted(len(self.points), "point")
        return brief.line("Line", self.name, self.mode, points)

    @property
    def base(self) -> Point | None:
        """The point that the others are compared with; None where there is none."""
        return _base(self.points)


@dataclass(frozen=True)
class Study:
    """Lines over one kind of resource, all of them strong scaling or all of them weak."""

    against: str  # one of `SCALES`
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    ranks_of_node: int | None = None  # where nodes are counted

    @cached_property
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


def compared(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return points with speed-up and efficiency against the first that can be the base.

    Those whose ranks share cores, and those of which that is not known, have none.
    """
    ordered = sorted(points, key=lambda point: point.x)
    base = _base(ordered)
    return tuple(point if base is None else _against(point, base) for point in ordered)


def _base(points: Sequence[Point]) -> Point | None:
    return next((p for p in points if p.oversubscribed is False and p.seconds > 0), None)


def _against(point: Point, base: Point) -> Point:
    if point.oversubscribed is not False or not point.seconds > 0:
        return point
    factor = point.work / base.work
    share = base.x / point.x
    speed_up = factor * base.seconds / point.seconds
    interval = UNKNOWN  # of the base itself: it is 1 by what it is
    if point is not base and point.wide.known and base.wide.known:
        low, high = base.wide.low / point.wide.high, base.wide.high / point.wide.low
        interval = Interval(share * factor * low, share * factor * high)
    return replace(
        point, speed_up=speed_up, efficiency=speed_up * share, efficiency_interval=interval
    )


def study(runs: Sequence[Run], against: str) -> Study:
    """Return runs as lines over one of `SCALES`, with speed-up and efficiency.

    Parameters
    ----------
    runs : sequence of Run
        Benchmarks that :func:`lacking` finds nothing wrong with; those of one configuration on
        equal resources are pooled.
    against : str
        One of `SCALES`.

    Raises
    ------
    UsageError
        If no run has such resources, or runs do not go together: other machines or versions, N or d
        that are neither the same nor so many for each resource, some lines strong and some weak.
    """
    kept, notes, ranks_of_node = _kept(runs, against)
    _refuse_other_machines(kept)
    of_lines = _lines(kept, against)
    labels = _labels(of_lines, against)
    lines = []
    for label, members in zip(labels, of_lines, strict=True):
        points = compared(_points(members, against))
        mode = _mode(label, points, members, against)
        protocol = members[0].protocol
        lines.append(Line(protocol, label, mode, points, members[0]))
    modes = {line.mode: line.name for line in lines if line.mode != "one point"}
    if len(modes) > 1:
        raise UsageError(
            f"{modes['strong']} has the same N and d everywhere (strong scaling) and "
            f"{modes['weak']} has more with more {SCALES[against]} (weak scaling): show them apart"
        )
    lines.sort(key=lambda line: line.name)
    said: dict[str, list[str]] = {}
    for line in lines:
        for remark in _remarks(line, against):
            said.setdefault(remark, []).append(line.name)
    notes += [f"{', '.join(named)}: {remark}" for remark, named in said.items()]
    notes += _disturbances(kept)
    return Study(against, tuple(lines), tuple(notes), ranks_of_node)


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
    """Return how many resources a run had."""
    if against == "nodes":
        return len(_ranks_of_hosts(run))
    if against == "server-ranks":
        return run.server_ranks
    if against == "threads":
        return _threads(run)
    return holding(run)


def holding(run: Run) -> int:
    """Return how many ranks of a run held devices; one process counts as one."""
    ranks = int(run.environment["ranks"])
    return 1 if ranks == 1 else min(run.devices, ranks - run.server_ranks - run.helpers)


def oversubscribed(run: Run) -> bool | None:
    """Return whether ranks, or their threads, shared cores; None where it is not recorded."""
    ratio = run.environment.get("oversubscription_ratio")
    if ratio is None:
        return None
    return bool(ratio * _threads(run) > 1)


def _threads(run: Run) -> int:
    return int(run.config.get("threads") or 1)


def _ranks_of_hosts(run: Run) -> list[int]:
    return run.environment.get("host_ranks") or []


def _kept(runs: Sequence[Run], against: str) -> tuple[list[Run], list[str], int | None]:
    """Return the runs that a scale can have, what is to be said of others, and ranks of a node."""
    if against not in ("ranks", "nodes"):
        return [*runs], [], None
    kept = [run for run in runs if int(run.environment["ranks"]) > 1]
    notes = []
    if len(kept) < len(runs):
        left = counted(len(runs) - len(kept), "run")
        notes.append(f"left out: {left} in one process, where nothing is sent and nobody waits")
    if not kept:
        raise UsageError(
            f"all runs are of one process, and there are no {SCALES[against]} to compare: start "
            "them by mpirun -n, with other numbers of ranks into other folders"
        )
    if against == "ranks":
        return kept, notes, None
    most = max(max(_ranks_of_hosts(run)) for run in kept)
    full = [run for run in kept if set(_ranks_of_hosts(run)) == {most}]
    if not full:
        raise UsageError(
            f"no run has equally many ranks on all of its nodes, {most} as the fullest: start as "
            "many ranks as the nodes have places for"
        )
    if len(full) < len(kept):
        left = counted(len(kept) - len(full), "run")
        notes.append(f"left out: {left} that do not have {most} ranks on every node")
    return full, notes, most


def _refuse_other_machines(runs: Sequence[Run]) -> None:
    """Refuse runs of different machines or software by UsageError."""
    first = runs[0]
    known = _same(first)
    for run in runs[1:]:
        other = _same(run)
        for name in dict.fromkeys([*known, *other]):
            if known.get(name) != other.get(name):
                a, b = (formats.words(one.get(name), nothing="none") for one in (known, other))
                raise UsageError(
                    f"{first.path.name} and {run.path.name} were not measured alike, so that what "
                    f"differs is not the scale alone: {name} is {a} and {b}; name the runs of one "
                    "machine and version"
                )


def _same(run: Run) -> Mapping[str, Any]:
    return {name: value for name, value in pooling.machine(run).items() if name in _SAME}


def _asked(run: Run, against: str) -> dict[str, Any]:
    """Return what was asked for, but for what may differ along a line."""
    asked = run.config if run.asked is None else run.asked
    varied = {"devices", "dim", against.replace("-", "_")}
    found = {k: v for k, v in asked.items() if k not in _FREE | varied}
    return {"protocol": run.protocol, **found}


def _lines(runs: Sequence[Run], against: str) -> list[list[Run]]:
    """Return the runs of each line: equal options, and ranks where these are not the scale."""
    lines: dict[str, list[Run]] = {}
    for run in runs:
        beside = None if against in ("ranks", "nodes") else int(run.environment["ranks"])
        key = json.dumps([_asked(run, against), beside], sort_keys=True, default=str)
        lines.setdefault(key, []).append(run)
    found = []
    for members in lines.values():
        found += _sizes_apart(members, against)
    return found


def _sizes_apart(members: list[Run], against: str) -> list[list[Run]]:
    """Return the runs of several strong lines apart, where all are on equal resources.

    Sizes that were each run on the same several numbers of resources are lines of their own.
    """
    by_size: dict[tuple[int, int], list[Run]] = {}
    for run in members:
        by_size.setdefault((run.devices, run.dim), []).append(run)
    places = [{resources(run, against) for run in of_one} for of_one in by_size.values()]
    apart = len(by_size) > 1 and all(len(one) > 1 and one == places[0] for one in places)
    return [*by_size.values()] if apart else [members]


def _labels(lines: Sequence[Sequence[Run]], against: str) -> list[str]:
    """Return what each line is called: its protocol, and what it differs in from others of it."""
    by_protocol: dict[str, list[dict[str, Any]]] = {}
    facts = []
    for members in lines:
        run = members[0]
        known = _asked(run, against)
        sizes = {(one.devices, one.dim) for one in members}
        if len(sizes) == 1:
            known |= {"N": run.devices, "d": run.dim}
        if against not in ("ranks", "nodes"):
            known["ranks"] = run.environment["ranks"]
        facts.append(known)
        by_protocol.setdefault(run.protocol, []).append(known)
    found = []
    for known in facts:
        others = by_protocol[known["protocol"]]
        differing = [
            name
            for name in dict.fromkeys(name for one in others for name in one)
            if len({str(one.get(name)) for one in others}) > 1
        ]
        told = [_told(name, known[name]) for name in differing if name in known]
        found.append(", ".join([known["protocol"], *told]))
    return found


def _told(name: str, value: Any) -> str:
    """Return an option, or a size, in words."""
    words = formats.words(value)
    return f"{name} = {words}" if name in ("N", "d") else f"{name.replace('_', ' ')} {words}"


def _points(members: Sequence[Run], against: str) -> list[Point]:
    """Return a point for each number of resources and size, over all runs that have it."""
    places: dict[tuple[int, int, int], list[Run]] = {}
    for run in members:
        places.setdefault((resources(run, against), run.devices, run.dim), []).append(run)
    return [_point(x, runs) for (x, _, _), runs in places.items()]


def _point(x: int, runs: Sequence[Run]) -> Point:
    run = runs[0]
    seconds = _all(runs, lambda one: one.round_seconds[one.measured])
    states = {oversubscribed(one) for one in runs}
    return Point(
        x,
        int(run.environment["ranks"]),
        run.devices,
        run.dim,
        float(np.median(seconds)),
        median_interval(seconds),
        median_interval(seconds, _CONFIDENCE),
        float(np.median(_all(runs, everybodys_cpu_seconds))),
        seconds.size,
        True if True in states else None if None in states else False,
    )


def _all(runs: Sequence[Run], read: Callable[[Run], NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([read(run) for run in runs]).astype(np.float64)


def _mode(label: str, points: Sequence[Point], members: Sequence[Run], against: str) -> Mode:
    """Return what a line is; UsageError if it is neither strong nor weak scaling."""
    at = [point.x for point in points]
    if len({(p.devices, p.dim) for p in points}) == 1:
        return "strong" if len(points) > 1 else "one point"
    if len(at) == len({*at}) and _constant_load(members, against):
        return "weak"
    shown = ", ".join(f"N = {p.devices} and d = {p.dim} on {p.x}" for p in points[:4])
    more = ", ..." if len(points) > 4 else ""
    raise UsageError(
        f"{label}: {shown}{more} {SCALES[against]} are neither the same N and d everywhere (strong "
        "scaling) nor so many for each (weak scaling): choose runs with --where"
    )


def _constant_load(members: Sequence[Run], against: str) -> bool:
    """Return whether each resource has as much to do: devices of a rank, or coordinates."""
    if against in ("ranks", "nodes"):
        loads = {(run.devices / holding(run), run.dim) for run in members}
    else:
        loads = {(run.dim / resources(run, against), run.devices) for run in members}
    return len(loads) == 1


def _remarks(line: Line, against: str) -> list[str]:
    """Return what is to be said of a line."""
    found = []
    shared = [str(point.x) for point in line.points if point.oversubscribed]
    if shared:
        found.append(
            f"at {', '.join(shared)} {SCALES[against]} the ranks or their threads "
            "share cores: seconds show the scheduler, so no speed-up and no efficiency are given; "
            "CPU seconds stay right"
        )
    unknown = [str(point.x) for point in line.points if point.oversubscribed is None]
    if unknown:
        found.append(
            f"at {', '.join(unknown)} {SCALES[against]} files do not tell whether ranks "
            "share cores, so no speed-up and no efficiency are given"
        )
    base = line.base
    if base is not None and base is not line.points[0]:
        found.append(f"compared with {base.x} {SCALES[against]}, not the fewest")
    if against == "server-ranks" and len({point.ranks for point in line.points}) == 1:
        found.append(
            f"all {line.points[0].ranks} ranks of the job are the same in number, so "
            "more of the server are fewer that hold devices"
        )
    return found
