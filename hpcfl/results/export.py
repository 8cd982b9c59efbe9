"""Summaries as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcfl.results.summary import PhaseSummary, Summary, ratios
from hpcfl.results.tables import warnings_of

# What means something else than itself in a cell of a Markdown table; "_" only at a word's edge.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|]|(?<!\w)_|_(?!\w)")


def to_json(summaries: Sequence[Summary], baseline: Summary) -> str:
    """Return the summaries, and the ratios where there is something to compare.

    Parameters
    ----------
    summaries : sequence of Summary
        The runs.
    baseline : Summary
        The one that the others are compared with.

    Returns
    -------
    str
        An object with ``runs``, a list; with several runs also ``baseline``, its path, and in
        each run ``baseline_over_run``. What is undefined is null.
    """
    runs = [summary.as_dict() for summary in summaries]
    report: dict[str, Any] = {"runs": runs}
    if len(runs) > 1:
        report["baseline"] = baseline.path
        for run, summary in zip(runs, summaries, strict=True):
            run["baseline_over_run"] = dataclasses.asdict(ratios(baseline, summary))
    return json.dumps(report, indent=2, allow_nan=False)


def to_csv(summaries: Sequence[Summary]) -> str:
    """Return a tidy table: one row per run and phase, and one per run with the phase ``total``.

    The columns are the fields of :class:`~hpcfl.results.summary.Summary` and
    :class:`~hpcfl.results.summary.PhaseSummary`, with their units in their names. What concerns
    whole rounds stands in the rows of ``total`` only; a cell without a value is empty.

    Returns
    -------
    str
        Lines after RFC 4180, but ended by a newline alone; the first one names the columns.
    """
    rows = [row for summary in summaries for row in _rows(summary)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _rows(summary: Summary) -> list[dict[str, Any]]:
    """Return the rows of a run; the total is last."""
    run: dict[str, Any] = {}
    whole_rounds: dict[str, Any] = {}
    for field in dataclasses.fields(summary):
        if field.name in ("phases", "total"):
            continue
        value = getattr(summary, field.name)
        measured = dataclasses.is_dataclass(value) and field.name != "link"
        _flatten(whole_rounds if measured else run, field.name, value)
    rows = [run | {"phase": phase.name} | _phase_cells(phase) for phase in summary.phases]
    total = run | {"phase": summary.total.name} | _phase_cells(summary.total) | whole_rounds
    return [*rows, total]


def _phase_cells(phase: PhaseSummary) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for field in dataclasses.fields(phase):
        if field.name != "name":
            _flatten(cells, field.name, getattr(phase, field.name))
    return cells


def _flatten(cells: dict[str, Any], name: str, value: Any) -> None:
    """Put a value into cells, the fields of a dataclass one by one."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _flatten(cells, f"{name}_{field.name}", getattr(value, field.name))
    elif isinstance(value, list | tuple):
        cells[name] = "; ".join(map(str, value))
    else:
        undefined = value is None or (isinstance(value, float) and math.isnan(value))
        cells[name] = "" if undefined else value


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table in GitHub's Markdown; the first columns hold words, the others numbers.

    Parameters
    ----------
    header : sequence of str, length C
        Names of the columns.
    rows : sequence of sequence of str
        C cells each, of plain text: what Markdown would read as its own is escaped.
    words : int
        Number of columns to the left; the others are set to the right.
    """
    rule = [":---" if column < words else "---:" for column in range(len(header))]
    lines = [[_escaped(cell) for cell in header], rule]
    lines += [[_escaped(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(cell: str) -> str:
    text = _MARKDOWN.sub(lambda found: "\\" + found.group(), " ".join(cell.split()))
    return text.replace("&", "&amp;")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table to be shown.

    Attributes
    ----------
    header : tuple of str, length C
        Names of the columns, with units.
    rows : list of list of str
        C cells each.
    words : int
        Number of columns, from the left, that hold words; the others hold numbers.
    """

    header: tuple[str, ...]
    rows: list[list[str]]
    words: int = 1

    def markdown(self) -> str:
        """Return it in GitHub's Markdown."""
        return markdown_table(self.header, self.rows, self.words)


def comparison(summaries: Sequence[Summary], baseline: Summary) -> Table:
    """Return runs side by side, one to a row, and how they compare with a baseline.

    Times are medians over measured rounds, bytes are means; a device is the slowest of a round;
    a ratio is baseline over run.
    """
    header = (
        *("#", "protocol", "N", "d", "alpha", "theta", "rounds", "up, B/device"),
        *("down, B/device", "device CPU, ms", "server CPU, ms", "round measured, s"),
        *("95 % interval", "round modelled, s", "up ratio", "device CPU ratio", "modelled ratio"),
    )
    rows = []
    for number, one in enumerate(summaries, 1):
        ratio = ratios(baseline, one)
        rows.append(
            [
                *(str(number), one.variant, str(one.devices), str(one.dim)),
                *(_number(one.alpha), _number(one.theta), str(one.rounds_measured)),
                *(_count(one.total.bytes_up_mean), _count(one.total.bytes_down_mean)),
                _number(_milli(one.total.device_cpu_seconds.median)),
                _number(_milli(one.total.server_cpu_seconds.median)),
                *(_number(one.round_seconds.median), _interval(one)),
                _number(one.modelled_round_seconds.median),
                *map(_number, dataclasses.astuple(ratio)),
            ]
        )
    return Table(header, rows, words=2)


def phases(summary: Summary) -> Table:
    """Return the cost of a run, a phase to a row, and of whole rounds in the last row."""
    header = (
        *("phase", "up, B/device", "down, B/device"),
        *(f"device CPU, ms, {name}" for name in ("median", "p95", "max")),
        *(f"rank wall, ms, {name}" for name in ("median", "p95", "max")),
        *("server CPU, ms, median", "modelled, ms, median"),
    )
    rows = []
    for phase in (*summary.phases, summary.total):
        spreads = (phase.device_cpu_seconds, phase.wall_seconds)
        seconds = [
            *(value for one in spreads for value in (one.median, one.p95, one.max)),
            *(phase.server_cpu_seconds.median, phase.modelled_seconds),
        ]
        rows.append(
            [
                *(phase.name, _count(phase.bytes_up_mean), _count(phase.bytes_down_mean)),
                *(_number(_milli(value)) for value in seconds),
            ]
        )
    return Table(header, rows)


def _files(summary: Summary) -> str:
    """Return the names of the files that were pooled."""
    return ", ".join(Path(file).name for file in summary.files) or summary.name


def _interval(summary: Summary) -> str:
    found = summary.round_seconds_interval
    return f"{_number(found.low)} to {_number(found.high)}" if found.known else "-"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _milli(seconds: float) -> float:
    return 1000 * seconds


def _number(value: float | None) -> str:
    """Return a number with four significant digits and no exponent where that is short."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def to_markdown(summaries: Sequence[Summary], baseline: Summary) -> str:
    """Return the runs as Markdown: one by its phases, several side by side.

    Parameters
    ----------
    summaries : sequence of Summary
        The runs, at least one, all with the same link model.
    baseline : Summary
        The one that the others are compared with.
    """
    link = summaries[0].link
    modelled = (
        f"Modelled at {link.uplink_mbps:g} Mbit/s up, {link.downlink_mbps:g} Mbit/s down, "
        f"{link.latency_ms:g} ms latency."
    )
    if len(summaries) == 1:
        (summary,) = summaries
        about = (
            f"{_escaped(summary.variant)}, N = {summary.devices}, d = {summary.dim}, "
            f"{summary.rounds_measured} measured rounds, {_escaped(_files(summary))}"
        )
        interval = summary.round_seconds_interval
        spread = f", 95 % interval {_interval(summary)} s" if interval.known else ""
        seconds = (
            f"Round: measured {_number(summary.round_seconds.median)} s{spread}; modelled "
            f"{_number(summary.modelled_round_seconds.median)} s."
        )
        note = (
            "Device: the slowest of each round; rank: the slowest of devices and server. B/device: "
            "mean over the devices that sent or received any; total: over the survivors."
        )
        told = "\n".join(f"- Warning: {_escaped(one)}" for one in warnings_of(summary))
        parts = [about, phases(summary).markdown(), f"{seconds} {modelled} {note}", told]
        return "\n\n".join(part for part in parts if part)
    note = (
        "CPU of a device: the slowest of each round. Times are medians over measured rounds, bytes "
        f"are means. Ratio: {_escaped(baseline.variant)} ({_escaped(baseline.name)}) / this run; "
        "above 1 this run is cheaper."
    )
    warnings = [
        f"- Warning for run {number}: {_escaped(sentence)}"
        for number, one in enumerate(summaries, 1)
        for sentence in warnings_of(one)
    ]
    files = [f"{number}. {_escaped(_files(one))}" for number, one in enumerate(summaries, 1)]
    parts = [
        *(comparison(summaries, baseline).markdown(), f"{note} {modelled}"),
        *("\n".join(files), "\n".join(warnings)),
    ]
    return "\n\n".join(part for part in parts if part)
