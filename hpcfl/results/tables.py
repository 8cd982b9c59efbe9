"""Plain-text tables of what runs cost, at most 119 columns wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import SEPARATING_LINE, DataRow, Line, TableFormat, tabulate

from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import Run
from hpcfl.results.statistics import Interval, Percentiles
from hpcfl.results.summary import PhaseSummary, Summary, choose_baseline, ratios
from hpcfl.system import files

_WIDTH = 119

# A first round of so many times the median is warned of where it was measured.
_SLOW_START = 2.0
# Launches are said to differ from this p value on.
_DIFFERENT = 0.05

# As "simple", with one space between columns: a comparison has fourteen.
_DENSE = TableFormat(
    lineabove=Line("", "-", " ", ""),
    linebelowheader=Line("", "-", " ", ""),
    linebetweenrows=None,
    linebelow=Line("", "-", " ", ""),
    headerrow=DataRow("", " ", ""),
    datarow=DataRow("", " ", ""),
    padding=0,
    with_header_hide=None,
)


def render_run(summary: Summary) -> str:
    """Return the cost of one run, phase by phase.

    Parameters
    ----------
    summary : Summary
        The run.

    Returns
    -------
    str
        Lines of text, without a newline at the end.
    """
    survivors = "none measured"
    if summary.survivors_mean is not None:
        survivors = (
            f"{summary.survivors_mean:.4g} of {summary.devices} a round on average "
            f"(fewest {summary.survivors_min}, most {summary.survivors_max})"
        )
    header = {
        "file": summary.path,
        "status": _status(summary.status),
        "protocol": summary.variant,
        "devices N": summary.devices,
        "parameters d": summary.dim,
        "rounds": f"{summary.rounds_measured} measured + {summary.rounds_warmup} of warm-up"
        + _stopped(summary.stop_reason),
        "validated": f"{summary.rounds_validated}/{summary.rounds_total}",
        "survivors": survivors,
        "transport": summary.transport or "not recorded",
        "MPI library": summary.mpi_library or "not recorded",
        "link model": _link(summary.link),
    }
    if summary.repeats > 1:
        header["repeats"] = f"{summary.repeats} launches: {', '.join(summary.files)}"
    table = _table(
        [
            "phase",
            "up\nB/device",
            "down\nB/device",
            *(f"device\nCPU ms\n{name}" for name in ("median", "p95", "max")),
            *(f"rank\nwall ms\n{name}" for name in ("median", "p95", "max")),
            "server\nCPU ms\nmedian",
            "modelled\nms\nmedian",
        ],
        [*map(_phase_row, summary.phases), SEPARATING_LINE, _phase_row(summary.total)],
        "simple",
    )
    return "\n".join(
        [
            _pairs(header),
            "",
            table,
            "",
            "device: the slowest device of each round; rank: the slowest of devices and server",
            "B/device: mean over the devices that sent or received any; total: over the survivors",
            f"round, measured:  {_spread(summary.round_seconds)}",
            f"                  {_interval_or_why_not(summary.round_seconds_interval)}",
            f"first round:      {_first_round(summary)}",
            f"round, modelled:  {_spread(summary.modelled_round_seconds)}",
            f"                  (modelled at {_link(summary.link)})",
            *_warnings(summary),
        ]
    )


def render_comparison(summaries: Sequence[Summary], baseline: str | None = None) -> str:
    """Return runs side by side, one to a row, and how they compare with a baseline.

    Parameters
    ----------
    summaries : sequence of Summary
        The runs, all with the same link model.
    baseline : str, optional
        Name of a file or protocol, see :func:`~hpcfl.results.summary.choose_baseline`.

    Returns
    -------
    str
        Lines of text, without a newline at the end.

    Raises
    ------
    UsageError
        If no run or more than one goes by the name of the baseline.
    """
    base = choose_baseline(summaries, baseline)
    table = _table(
        [
            "protocol",
            "N",
            "d",
            "alpha",
            "theta",
            "up\nB/device",
            "down\nB/device",
            "device\nCPU\nms",
            "server\nCPU\nms",
            "round\nmeasured\ns",
            "round\nmodelled\ns",
            "up\nratio",
            "device\nCPU\nratio",
            "round\nmodelled\nratio",
        ],
        [_comparison_row(base, summary) for summary in summaries],
        _DENSE,
    )
    files = {str(row): _row_remarks(summary) for row, summary in enumerate(summaries, 1)}
    disturbed: dict[str, list[int]] = {}
    for row, summary in enumerate(summaries, 1):
        for sentence in warnings_of(summary):
            disturbed.setdefault(sentence, []).append(row)
    return "\n".join(
        [
            f"baseline: {base.variant}, N = {base.devices}, d = {base.dim} ({base.name})",
            f"          up {_count(base.total.bytes_up_mean)} B/device, "
            f"device CPU {_milliseconds(base.total.device_cpu_seconds.median)} ms, "
            f"modelled round {_seconds(base.modelled_round_seconds.median)} s",
            "ratio:    baseline / this run; above 1 this run is cheaper",
            f"link:     {_link(base.link)} (for modelled seconds)",
            "",
            table,
            "",
            "CPU of a device: the slowest device of each round; times are medians over measured "
            "rounds, bytes are means.",
            "rows:",
            _pairs(files, indent="  "),
            *(_warning(f"{_rows(rows)}: {sentence}") for sentence, rows in disturbed.items()),
        ]
    )


def _rows(rows: Sequence[int]) -> str:
    """Return increasing numbers of rows in words: ``row 3``, or ``rows 1 to 4, 7``."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rows {', '.join(parts)}"


def warnings_of(summary: Summary) -> list[str]:
    """Return what speaks against the measured seconds of a run, or of repeats, a sentence each."""
    found = list(summary.warnings)
    first, median = summary.first_round_seconds, summary.round_seconds.median
    if first is not None and not summary.rounds_warmup and first > _SLOW_START * median:
        found.append(
            f"the first round took {first / median:.1f} times the median and was measured: "
            "connections and buffers are set up in it; see --warmup"
        )
    p_value = summary.repeats_p_value
    if p_value is not None and p_value <= _DIFFERENT:
        found.append(
            f"the {summary.repeats} launches differ more than their rounds do (rank test, "
            f"p = {p_value:.2g}): the interval is of these launches, not of a further one"
        )
    return found


def render_details(run: Run) -> str:
    """Return everything that was set and found out for a run, except what has no value.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    str
        Lines of text, without a newline at the end.
    """
    about = {
        "command": run.command,
        "run": run.run_id,
        "started": run.started,
        "finished": run.finished or "not finished",
    }
    blocks = [_pairs(about)]
    options = {name: value for name, value in run.config.items() if name != "promises"}
    for title, values in (("options", options), ("environment", run.environment)):
        known = {name: value for name, value in sorted(values.items()) if _has_value(value)}
        if known:
            blocks.append(f"{title}\n{_pairs(known, indent='  ')}")
    for launch in run.resumed:
        known = {name: value for name, value in sorted(launch.items()) if _has_value(value)}
        title = f"gone on with from round {launch['first_round']}"
        blocks.append(f"{title}\n{_pairs(known, indent='  ')}")
    return "\n".join(blocks)


def _has_value(value: Any) -> bool:
    return value not in ("none", "") and value == value  # NaN is not equal to itself


def render_promises(run: Run) -> str:
    """Return what the run's protocol hides, and how surely, as it was recorded; "" if nothing was.

    Returns
    -------
    str
        Lines of text of at most 119 characters, without a newline at the end.
    """
    sentences = [*files.parse_words(run.config.get("promises", "[]")), *_checked(run)]
    return "\n".join(
        textwrap.fill(sentence, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        for sentence in sentences
    )


def _checked(run: Run) -> list[str]:
    """Return in a sentence what the promises came to in the rounds that took place."""
    found = run.promise_failure
    if found is None or not np.isfinite(found).any():
        return []
    worst = float(np.nanmax(found))
    chance = f", but for a probability of 2^{math.log2(worst):.1f}" if worst else ""
    return [
        f"this was checked in each of {len(found)} rounds against who was there, and held{chance}"
    ]


def _table(
    headers: Sequence[str], rows: Sequence[str | list[str]], style: str | TableFormat
) -> str:
    """Return a table with headers of several lines, the first column to the left.

    The header is made of rows, because tabulate makes a column two wider than its header, and
    there is no room for that.
    """
    lines = [header.split("\n") for header in headers]
    height = max(map(len, lines))
    above = zip(*([""] * (height - len(line)) + line for line in lines), strict=True)
    return tabulate(
        [*map(list, above), SEPARATING_LINE, *rows],
        tablefmt=style,
        colalign=("left", *["right"] * (len(headers) - 1)),
        disable_numparse=True,
    )


def _phase_row(phase: PhaseSummary) -> list[str]:
    device, wall = phase.device_cpu_seconds, phase.wall_seconds
    return [
        phase.name,
        _count(phase.bytes_up_mean),
        _count(phase.bytes_down_mean),
        *(_milliseconds(seconds) for seconds in (device.median, device.p95, device.max)),
        *(_milliseconds(seconds) for seconds in (wall.median, wall.p95, wall.max)),
        _milliseconds(phase.server_cpu_seconds.median),
        _milliseconds(phase.modelled_seconds),
    ]


def _comparison_row(base: Summary, summary: Summary) -> list[str]:
    ratio = ratios(base, summary)
    return [
        summary.variant,
        str(summary.devices),
        str(summary.dim),
        _option(summary.alpha),
        _option(summary.theta),
        _count(summary.total.bytes_up_mean),
        _count(summary.total.bytes_down_mean),
        _milliseconds(summary.total.device_cpu_seconds.median),
        _milliseconds(summary.total.server_cpu_seconds.median),
        _seconds(summary.round_seconds.median),
        _seconds(summary.modelled_round_seconds.median),
        _times(ratio.bytes_up),
        _times(ratio.device_cpu),
        _times(ratio.modelled_round),
    ]


def _row_remarks(summary: Summary) -> str:
    """Return the files of a row, and how surely its seconds are known."""
    text = ", ".join(Path(path).name for path in summary.files) or summary.name
    if summary.repeats > 1:
        text = f"{summary.repeats} repeats: {text}"
    text += _remark(summary)
    interval = summary.round_seconds_interval
    if interval.known:
        text += (
            f"; round measured {_seconds(summary.round_seconds.median)} s, "
            f"95 % interval {_interval(interval)} s over {summary.rounds_measured} rounds"
        )
    return text


def _warnings(summary: Summary) -> list[str]:
    return [_warning(sentence) for sentence in warnings_of(summary)]


def _warning(sentence: str) -> str:
    return textwrap.fill(f"warning: {sentence}", _WIDTH, subsequent_indent=" " * 9)


def _stopped(reason: str | None) -> str:
    sentence = {
        "rel_ci": "the median's interval was narrow enough",
        "max_seconds": "--max-seconds had passed",
        "max_rounds": "--max-rounds was reached",
    }.get(reason or "")
    return f"; stopped because {sentence} ({reason})" if sentence else ""


def _first_round(summary: Summary) -> str:
    first = summary.first_round_seconds
    if first is None:
        return "-"
    kind = "warm-up" if summary.rounds_warmup else "measured"
    text = f"{_seconds(first)} s ({kind}"
    median = summary.round_seconds.median
    return f"{text}, {first / median:.2f} times the median)" if median > 0 else f"{text})"


def _interval_or_why_not(interval: Interval) -> str:
    if interval.known:
        return f"95 % interval of the median {_interval(interval)} s (by ranks)"
    return "no 95 % interval of the median: that takes 6 measured rounds"


def _interval(interval: Interval) -> str:
    return f"[{_seconds(interval.low)}, {_seconds(interval.high)}]"


def _remark(summary: Summary) -> str:
    remarks = [] if summary.status == "complete" else [_status(summary.status)]
    if summary.rounds_validated < summary.rounds_total:
        remarks.append(f"validated {summary.rounds_validated}/{summary.rounds_total}")
    return f" ({', '.join(remarks)})" if remarks else ""


def _status(status: str) -> str:
    return "running, or killed before its end" if status == "running" else status


def _link(link: LinkModel) -> str:
    return (
        f"{link.uplink_mbps:g} Mbit/s up, {link.downlink_mbps:g} Mbit/s down, "
        f"{link.latency_ms:g} ms latency"
    )


def _spread(seconds: Percentiles) -> str:
    return (
        f"median {_seconds(seconds.median)} s, p95 {_seconds(seconds.p95)} s, "
        f"max {_seconds(seconds.max)} s"
    )


def _pairs(values: Mapping[str, Any], indent: str = "") -> str:
    """Return names and values in two columns; long values continue below themselves."""
    column = max(len(name) for name in values) + 2
    lines = []
    for name, value in values.items():
        lines += textwrap.wrap(
            str(value),
            width=_WIDTH,
            initial_indent=f"{indent}{name:<{column}}",
            subsequent_indent=indent + " " * column,
            break_on_hyphens=False,
        ) or [f"{indent}{name}"]
    return "\n".join(lines)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _option(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{_significant(value, 3)}x"


def _milliseconds(seconds: float) -> str:
    return _significant(1000 * seconds, 4)


def _seconds(seconds: float) -> str:
    return _significant(seconds, 4)


def _significant(value: float, digits: int) -> str:
    """Return a number with that many digits, at most three decimals and no exponent."""
    if math.isnan(value):
        return "-"
    before = 1 if value < 1 else math.floor(math.log10(value)) + 1
    return f"{value:.{min(3, max(0, digits - before))}f}"
