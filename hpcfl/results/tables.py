"""Tables and sentences about the cost of runs, which :mod:`hpcfl.report.table` formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.report import formats, table
from hpcfl.report.formats import counted, seconds
from hpcfl.report.table import RULE, Column, Facts, Table, label, paragraph, size
from hpcfl.results.columns import COLUMNS, COMMON, SHOWN, choose, telling_apart
from hpcfl.results.reader import Run
from hpcfl.results.record import LATE_REASONS
from hpcfl.results.schema import PLACEMENT
from hpcfl.results.statistics import PERCENTILES
from hpcfl.results.summary import Summary, beside

STOPPED = {
    "rel_ci": "the median's interval was narrow enough",
    "max_seconds": "--max-seconds had passed",
    "max_rounds": "--max-rounds was reached",
    "target_accuracy": "--target-accuracy was reached",
    "epsilon": "one more round would have cost more than --epsilon",
}
_PHASES = (
    label("phase"),
    size("bytes_up_mean", "up", "/device"),
    size("bytes_down_mean", "down", "/device"),
    *(table.seconds(f"device_cpu_seconds_{of}", f"device CPU {of}") for of in PERCENTILES),
    *(table.seconds(f"wall_seconds_{of}", f"rank wall {of}") for of in PERCENTILES),
    table.seconds("server_cpu_seconds_median", "server CPU median"),
    table.seconds("modelled_seconds", "modelled median"),
)


def _columns_of(party: str) -> Sequence[Column]:
    return (
        size(f"{party}_bytes_up_mean", f"{party} up"),
        size(f"{party}_bytes_down_mean", f"{party} down"),
        table.seconds(f"{party}_cpu_seconds_median", f"{party} CPU median"),
    )


def phases(summary: Summary) -> Table:
    """Return a table of the cost of one run: its phases, whole rounds, and the enrolment."""
    # Parties that only some protocols have.
    others = [one for one in ("member", "helper") if f"{one}_bytes_up_mean" in summary.phases[-1]]
    columns = (*_PHASES, *(column for party in others for column in _columns_of(party)))
    rows: list[Sequence[Any]] = [
        [phase.get(column.name) for column in columns] for phase in summary.phases
    ]
    once = [
        [f"once: {row['phase']}", *(row.get(column.name) for column in columns[1:])]
        for row in summary.enrolment
    ]
    return Table(
        columns,
        [*rows[:-1], RULE, rows[-1], *([RULE, *once] if once else [])],
        f"A round of {summary['protocol']}, N = {summary['devices']}, "
        f"d = {summary['dim']}{_of_model(summary)}",
        [
            "device: the slowest device of each round; rank: the slowest of devices and server",
            "B/device: mean over the devices that sent or received any; total: over the survivors",
            *(
                f"{party}: mean bytes of one, and the slowest one's CPU time; not in the devices'"
                for party in others
            ),
            *(["once: the enrolment, in no round, modelled over equal links"] if once else []),
            *(f"warning: {sentence}" for sentence in summary.warnings),
        ],
    )


def facts(summary: Summary) -> Facts:
    """Return facts about a run: what it was, how it went, and how long its rounds took."""
    one = summary.figures
    rounds = f"{one['rounds_measured']} measured + {one['rounds_warmup']} of warm-up"
    reason = one["stop_reason"]
    if reason in STOPPED:
        rounds += f"; stopped because {STOPPED[reason]} ({reason})"
    loopback = "none (one process)" if one["transport"] == "loopback" else "not recorded"
    launches = f"{counted(one['launches'], 'launch')}: {', '.join(summary.files)}"
    first, median = one["first_round_seconds"], one["round_seconds_median"]
    kind = "warm-up" if one["rounds_warmup"] else "measured"
    times = f", {first / median:.2f} times the median" if first and median > 0 else ""
    memory = ", ".join(
        f"{formats.amount(one[f'{party}_peak_bytes'])} of a {party}'s rank"
        for party in ("server", "helper", "device")
        if one[f"{party}_peak_bytes"] is not None
    )
    return Facts(
        {
            "file": one["path"],
            "status": one["status"],
            "protocol": one["protocol"],
            "devices N": one["devices"],
            "parameters d": f"{one['dim']}{_of_model(summary)}",
            "rounds": rounds,
            "validated": f"{one['rounds_validated']}/{one['rounds_total']}",
            "survivors": f"{formats.number(one['survivors_mean'])} of {one['devices']} on average",
            "transport": one["transport"] or "not recorded",
            "ranks": one["ranks"],
            "MPI library": one["mpi_library"] or loopback,
            "link model": one["link"],
            "late": _late(one),
            "repeats": launches if one["launches"] > 1 else None,
            "memory": f"{memory} at the peak of a round" if memory else None,
            "first round": None if first is None else f"{seconds(first)} s ({kind}{times})",
            "measured": f"{_spread(one, 'round_seconds')}; {_interval(one)}",
            "modelled": _spread(one, "modelled_round_seconds"),
        }
    )


def _late(figures: Mapping[str, Any]) -> str | None:
    """Return in words who was late, if the run has a population."""
    if figures["late_mean"] is None:
        return None
    why = ", ".join(
        f"{reason} {formats.number(figures[f'late_by_{reason}_mean'])}" for reason in LATE_REASONS
    )
    return (
        f"{formats.number(figures['late_mean'])} devices a round on average ({why}), which sent "
        f"{formats.amount(figures['late_bytes_mean'])} in vain; in no sum of the run: "
        f"{formats.share(figures['never_in_sum'])} of the devices"
    )


def _of_model(summary: Summary) -> str:
    """Return in parentheses the model that sets the length of the vectors; "" if unrecorded."""
    model = summary.config.get("model")
    return "" if model is None else f" ({formats.words(model)})"


def _interval(figures: Mapping[str, Any]) -> str:
    """Return the interval of the median of measured rounds, in words."""
    low, high = figures["round_seconds_low"], figures["round_seconds_high"]
    if math.isnan(low):
        return "no 95 % interval of the median: that takes 6 measured rounds"
    return f"95 % interval of the median {formats.interval(low, high)} s"


def _spread(figures: Mapping[str, Any], name: str) -> str:
    return ", ".join(f"{of} {seconds(figures[f'{name}_{of}'])} s" for of in PERCENTILES)


def comparison(
    summaries: Sequence[Summary],
    baseline: str | None = None,
    columns: str | None = None,
    numbered: bool = False,
) -> Table:
    """Return a table of runs, each compared with a baseline of the same size.

    `baseline` is as for :func:`~hpcfl.results.summary.beside`, `columns` as for
    :func:`~hpcfl.results.columns.choose`. With `numbered` the row numbers, which notes refer to,
    are the first column if `columns` lacks them.
    """
    rows = beside(summaries, baseline)
    chosen, same = (choose(columns), []) if columns is not None else _chosen(rows)
    if numbered and COLUMNS["row"] not in chosen:
        chosen = [COLUMNS["row"], *chosen]
    values: list[Sequence[Any]] = []
    warned: dict[str, list[int]] = {}
    for before, row in zip([rows[0], *rows], rows, strict=False):
        values += [RULE] if row.like != before.like else []
        values.append([row.value(column.name) for column in chosen])
        for sentence in row.warnings:
            warned.setdefault(sentence, []).append(row["row"])
    links = {row["link"] for row in rows}
    modelled = f"; modelled: for {links.pop()}" if len(links) == 1 else ""
    return Table(
        chosen,
        values,
        ", ".join(["What a round costs", *same]),
        [
            *_about_baselines(rows),
            "times are medians over measured rounds, bytes are means; device, member: the slowest "
            f"of each round{modelled}",
            *(f"row {row['row']}: {_remarks(row)}" for row in rows),
            *(f"warning: {_rows(found)}: {sentence}" for sentence, found in warned.items()),
        ],
    )


def _chosen(rows: Sequence[Summary]) -> tuple[list[Column], list[str]]:
    """Return the columns to show, and in words the values that all rows have in common."""
    chosen, same = [], []
    for name, column in COLUMNS.items():
        values = [row.value(name) for row in rows]
        known = {value for value in values if formats.has_value(value)}
        if name not in SHOWN or not known:
            continue
        if len(known) == 1 and name in COMMON and None not in values:
            # The notes name the link of the modelled seconds.
            same += [f"{column.title} = {column.format(*known)}"] if name != "link" else []
        else:
            chosen.append(column)
    # Columns that describe a run come before those of its cost.
    costs = (i for i, column in enumerate(chosen) if column.scale is not None)
    first = next(costs, len(chosen))
    return [*chosen[:first], *telling_apart(rows), *chosen[first:]], same


def _about_baselines(rows: Sequence[Summary]) -> list[str]:
    """Return a note that names the baseline rows and explains ratios; [] without a baseline."""
    bases = [row for row in rows if row["path"] == row["baseline"]]
    if not bases:
        return []
    variants = ", ".join(dict.fromkeys(row["protocol"] for row in bases))
    each = ", each for the rows between the same lines" if len(bases) > 1 else ""
    return [
        f"baseline: {_rows([row['row'] for row in bases])} ({variants}){each}; a ratio is "
        "baseline / this run: above 1 this run is cheaper"
    ]


def details(run: Run) -> list[Facts]:
    """Return all options of a run and all recorded facts about it."""
    ranks = run.environment.get("ranks")
    started = (
        f"mpirun -n {ranks} {run.command}" if type(ranks) is int and ranks > 1 else run.command
    )
    about = {"command": started, "run": run.run_id, "started": run.started}
    about |= {"finished": run.finished or "not finished"}
    options = {name: value for name, value in run.config.items() if name != "promises"}
    found = [Facts(about), Facts(dict(sorted(options.items())), "options")]
    launches = {"": run.environment}
    launches |= {f", resumed from round {one['first_round']}": one for one in run.resumed}
    for which, environment in launches.items():
        known = {name: environment[name] for name in sorted(environment) if name != PLACEMENT}
        found.append(Facts(known, f"environment{which}"))
    return [one for one in found if one.known]


def promises(run: Run) -> list[str]:
    """Return the recorded privacy promises of the run's protocol, with their probabilities."""
    sentences = [*(run.config.get("promises") or [])]
    checked = int(np.isfinite(run.promise_failure).sum())
    if checked:
        worst = float(np.nanmax(run.promise_failure))
        chance = f", except with probability 2^{math.log2(worst):.1f}" if worst else ""
        sentences.append(
            f"checked in {checked} of {counted(run.rounds, 'round')} against the devices that were "
            f"present: it held{chance}"
        )
    return sentences


def render_run(summary: Summary) -> str:
    """Return the cost of one run as text: facts and phases."""
    return f"{facts(summary).text()}\n\n{phases(summary).text()}"


def render_promises(run: Run) -> str:
    """Return :func:`promises` as text, "" if nothing was recorded."""
    return "\n".join(paragraph(sentence, "- ") for sentence in promises(run))


def _remarks(summary: Summary) -> str:
    """Return the files of a row, its status, and the interval of its measured seconds."""
    text = ", ".join(Path(path).name for path in summary.files)
    if summary["launches"] > 1:
        text = f"{counted(summary['launches'], 'repeat')}: {text}"
    if summary["status"] != "complete":
        text += f" ({summary['status']})"
    if not summary["validated"]:
        text += f" (validated {summary['rounds_validated']}/{summary['rounds_total']})"
    rounds = counted(summary["rounds_measured"], "measured round")
    return f"{text}; {rounds}, {_interval(summary.figures)}"


def _rows(rows: Sequence[int]) -> str:
    """Return row numbers in words: ``row 3``, ``rows 1, 2``."""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}"
