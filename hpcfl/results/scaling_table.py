"""The table of speed-up and parallel efficiency."""

from __future__ import annotations

from typing import Any

from hpcfl.options.scaling import SCALES
from hpcfl.report import formats
from hpcfl.report.table import RULE, Column, Table, label, seconds
from hpcfl.results.scaling import Line, Point, Study


def table(study: Study) -> Table:
    """Return a row for each point of each line, measured ones first, then modelled ones."""
    columns = [
        label("line"),
        Column("x", SCALES[study.against], format=formats.count),
        # Beside the place, so that nothing is read without it where the table is folded.
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
    for line in study.lines:
        if rows:
            rows.append(RULE)
        rows += [_row(line, point) for point in line.points]
    return Table(
        columns,
        rows,
        f"Scaling over {SCALES[study.against]}; {study.fixed}",
        [
            "round: median elapsed seconds of the measured rounds, from and to: its 95 % interval; "
            "all CPU: of all devices, helpers and the server together",
            "speed-up: work (N times d) a second over that of the base, the line's first point "
            "with an efficiency; efficiency: speed-up over how many times as many there are; from "
            "and to: both medians' intervals together, 95 % or more",
            *study.notes,
        ],
    )


def _row(line: Line, point: Point) -> list[Any]:
    return [
        *(line.name, point.x, _state(point), point.ranks, point.devices, point.dim),
        *(point.seconds, point.interval.low, point.interval.high),
        *(point.speed_up, point.efficiency),
        *(point.efficiency_interval.low, point.efficiency_interval.high),
        point.cpu_seconds,
    ]


def _state(point: Point) -> str:
    if point.oversubscribed is None:
        return "measured, cores unknown"
    return "measured, oversubscribed" if point.oversubscribed else "measured"
