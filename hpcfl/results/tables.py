"""Tables and sentences on what runs cost; how they look is for :mod:`hpcfl.report.table`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.report import formats, jsontext, table
from hpcfl.report.formats import counted, seconds
from hpcfl.report.table import RULE, Column, Facts, Table, label, paragraph, size
from hpcfl.results import repeating
from hpcfl.results.columns import COLUMNS, Choice, Row, choose, telling_apart
from hpcfl.results.reader import Run
from hpcfl.results.schema import PLACEMENT, Metric
from hpcfl.results.statistics import DIFFERENT, Percentiles
from hpcfl.results.summary import OverLaunches, PhaseSummary, Summary, baselines, ratios

# A first round of so many times the median is warned of where it was measured.
_SLOW_START = 2.0

STOPPED = {
    "rel_ci": "the median's interval was narrow enough",
    "max_seconds": "--max-seconds had passed",
    "max_rounds": "--max-rounds was reached",
    "target_accuracy": "--target-accuracy was reached",
    "epsilon": "one more round would have cost more than --epsilon",
}


_WALL = tuple(f"wall_seconds_{of}" for of in ("median", "p95", "max"))
_PHASES = (
    label("phase"),
    size("bytes_up_mean", "up", "/device"),
    size("bytes_down_mean", "down", "/device"),
    *(
        table.seconds(f"device_cpu_seconds_{of}", f"device CPU {of}")
        for of in ("median", "p95", "max")
    ),
    *(table.seconds(name, f"rank wall {name.rpartition('_')[2]}") for name in _WALL),
    table.seconds("server_cpu_seconds_median", "server CPU median"),
    table.seconds("modelled_seconds", "modelled median"),
)
# Parties that only some protocols have.
_OTHERS = ("member", "helper")


def _columns_of(party: str) -> Sequence[Column]:
    return (
        size(f"{party}_bytes_up_mean", f"{party} up"),
        size(f"{party}_bytes_down_mean", f"{party} down"),
        table.seconds(f"{party}_cpu_seconds_median", f"{party} CPU median"),
    )


def phases(summary: Summary) -> Table:
    """Return the cost of one run, a phase to a row, and of whole rounds in the last row."""
    others = [party for party in _OTHERS if getattr(summary.total, f"{party}_cpu_seconds")]
    warned = warnings_of(summary)
    return Table(
        (*_PHASES, *(column for party in others for column in _columns_of(party))),
        [
            *(_phase_row(one, others) for one in summary.phases),
            RULE,
            _phase_row(summary.total, others),
        ],
        f"A round of {summary.variant}, N = {summary.devices}, "
        f"d = {summary.dim}{_of_model(summary)}",
        [
            "device: the slowest device of each round; rank: the slowest of devices and server",
            "B/device: mean over the devices that sent or received any; total: over the survivors",
            *(
                f"{party}: mean bytes of one, and the slowest one's CPU time; not in the devices'"
                for party in others
            ),
            *(f"warning: {sentence}" for sentence in warned),
        ],
    )


def facts(summary: Summary) -> Facts:
    """Return what a run was, how it went, and how long its rounds took."""
    survivors = "none measured"
    if summary.survivors_mean is not None:
        survivors = (
            f"{summary.survivors_mean:.4g} of {summary.devices} a round on average "
            f"(fewest {summary.survivors_min}, most {summary.survivors_max})"
        )
    reason = summary.stop_reason
    stopped = f"; stopped because {STOPPED[reason]} ({reason})" if reason in STOPPED else ""
    launches = f"{counted(summary.repeats, 'launch')}: {', '.join(summary.files)}"
    return Facts(
        {
            "file": summary.path,
            "status": _status(summary.status),
            "protocol": summary.variant,
            "devices N": summary.devices,
            "parameters d": f"{summary.dim}{_of_model(summary)}",
            "rounds": f"{summary.rounds_measured} measured + {summary.rounds_warmup} of warm-up"
            + stopped,
            "validated": f"{summary.rounds_validated}/{summary.rounds_total}",
            "survivors": survivors,
            "transport": summary.transport or "not recorded",
            "ranks": _ranks(summary),
            "MPI library": summary.mpi_library or _without_mpi(summary),
            "link model": str(summary.link),
            "repeats": launches if summary.repeats > 1 else None,
            "memory": _memory(summary),
            "first round": _first_round(summary),
            "measured": _measured(summary),
            "modelled": _spread(summary.modelled_round_seconds),
        }
    )


def _without_mpi(summary: Summary) -> str:
    return "none (one process)" if summary.transport == "loopback" else "not recorded"


def _ranks(summary: Summary) -> str | None:
    """Return how many ranks there were, where there were several."""
    if summary.ranks is None or summary.ranks == 1:
        return None
    idle = f", of which {summary.idle_ranks} took no part" if summary.idle_ranks else ""
    return f"{summary.ranks}{idle}"


def _of_model(summary: Summary) -> str:
    """Return the model that the vectors are as long as, if it is recorded."""
    model = summary.config.get("model")
    return "" if model is None else f" ({formats.words(model)})"


def _memory(summary: Summary) -> str | None:
    """Return what ranks had resident, None if nothing is known."""
    parts = []
    # In one process devices and server are together.
    server = "the server's rank" if summary.server_ranks == 1 else "the server's largest rank"
    first = "the process" if summary.device_ready_bytes is None else server
    for who, ready, peak in (
        (first, summary.server_ready_bytes, summary.server_peak_bytes),
        ("the largest helper's", summary.helper_ready_bytes, summary.helper_peak_bytes),
        ("the largest other rank", summary.device_ready_bytes, summary.device_peak_bytes),
    ):
        if ready is not None and peak is not None:
            parts.append(f"{who} {ready / 1e6:.4g} MB before the first round, {peak / 1e6:.4g} MB")
    return f"{'; '.join(parts)} at the peak of a round" if parts else None


def rounds(run: Run) -> Table:
    """Return a row for every round of a run: what it took and, of training, what it reached."""
    reached = {
        name: values
        for name, values in run.training.items()
        if values.ndim == 1 and name != Metric.BYTES_UP_TOTAL
    }
    columns = [
        Column("round", "round", format=formats.count),
        Column("warmup", "warm-up", format=formats.words),
        Column("validated", "validated", format=formats.words),
        Column("survivors", "survivors", format=formats.count),
        Column("round_seconds", "round", "s", seconds),
        Column(Metric.BYTES_UP_TOTAL, "up, all devices", "B", formats.count),
        *(Column(name, name.replace("_", " "), format=formats.number) for name in reached),
    ]
    sent = run.bytes_up.sum(axis=(1, 2), dtype=np.int64).cumsum()
    rows = [
        [
            *(index, bool(run.warmup[index]), bool(run.validated[index])),
            *(int(run.survived[index].sum()), float(run.round_seconds[index]), int(sent[index])),
            *(float(values[index]) for values in reached.values()),
        ]
        for index in range(run.rounds)
    ]
    title = f"Rounds of {run.protocol}, N = {run.devices}"
    return Table(columns, rows, title, ["up, all devices: since the first round"])


def comparison(
    summaries: Sequence[Summary],
    baseline: str | None = None,
    notes: Sequence[str] = (),
    columns: str | None = None,
    numbered: bool = False,
) -> Table:
    """Return runs side by side, each compared with one of its size.

    `baseline` is as for :func:`~hpcfl.results.summary.baselines`, `columns` as for
    :func:`~hpcfl.results.columns.choose`. `notes` are sentences on the rows, numbered from 1;
    `numbered` puts their numbers before columns that are asked for without them.
    """
    compared = baselines(summaries, baseline)
    rows = [
        Row(*one) for one in zip(range(1, len(summaries) + 1), summaries, compared, strict=True)
    ]
    chosen, same = ([*choose(columns)], []) if columns is not None else _chosen(rows)
    if numbered and COLUMNS["row"] not in chosen:
        chosen = [COLUMNS["row"], *chosen]
    values: list[Sequence[Any]] = []
    for number, row in enumerate(rows):
        if number and row.summary.like != rows[number - 1].summary.like:
            values.append(RULE)
        values.append([choice.value(row) for choice in chosen])
    warned: dict[str, list[int]] = {}
    for row in rows:
        for sentence in warnings_of(row.summary):
            warned.setdefault(sentence, []).append(row.number)
    return Table(
        [choice.column for choice in chosen],
        values,
        ", ".join(["What a round costs", *same]),
        [
            *_about_baselines(rows),
            *_about_figures(rows, {choice.column.name for choice in chosen}),
            *_about_members(summaries),
            *(f"row {row.number}: {_remarks(row.summary)}" for row in rows),
            *notes,
            *(f"warning: {_rows(found)}: {sentence}" for sentence, found in warned.items()),
        ],
    )


# What a run is, before what it costs.
_TOLD = ("row", "protocol", "algorithm", "devices", "dim", "alpha", "theta")


def _chosen(rows: Sequence[Row]) -> tuple[list[Choice], list[str]]:
    """Return the columns that have something to tell, and in words what all rows have in common."""
    chosen, same = [], []
    for choice in COLUMNS.values():
        values = [choice.value(row) for row in rows]
        if not choice.shown or not any(map(formats.has_value, values)):
            continue
        known = {value for value in values if formats.has_value(value)}
        if choice.common and len(known) == 1 and (choice.common == "known" or None not in values):
            (told,) = map(choice.column.format, known)
            # The notes say at what link seconds are modelled.
            same += [f"{choice.column.title} = {told}"] if choice.column.name != "link" else []
        else:
            chosen.append(choice)
    first = max(i for i, choice in enumerate(chosen) if choice.column.name in _TOLD) + 1
    return [*chosen[:first], *telling_apart(rows), *chosen[first:]], same


def _about_baselines(rows: Sequence[Row]) -> list[str]:
    """Return what the ratios of which rows are to."""
    bases = [row for row in rows if row.summary is row.baseline]
    if not bases:
        return []
    variants = ", ".join(dict.fromkeys(row.summary.variant for row in bases))
    each = ", each for the rows between the same lines" if len(bases) > 1 else ""
    alone = [row.number for row in rows if row.baseline is None]
    without = f"; {_rows(alone)}: none of the same size, dropout and link" if alone else ""
    return [
        f"baseline: {_rows([row.number for row in bases])} ({variants}){each}{without}; a ratio is "
        "baseline / this run: above 1 this run is cheaper"
    ]


def _about_figures(rows: Sequence[Row], names: set[str]) -> list[str]:
    """Return how the figures of some columns are computed."""
    links = {str(row.summary.link) for row in rows}
    modelled = f"; modelled: at {links.pop()}" if len(links) == 1 else ""
    said = [
        "times are medians over measured rounds, bytes are means; device: the slowest of each "
        f"round{modelled}"
    ]
    if any("to_target" in name for name in names):
        said.append(
            "to target: from the first round until held-out accuracy was there, by all devices"
        )
    return said


def _about_members(summaries: Sequence[Summary]) -> list[str]:
    """Return a note if figures of devices leave out members of a committee, and what these cost."""
    rows = [
        f"row {row}: {formats.count(total.member_bytes_up_mean)} B up, "
        f"{formats.milliseconds(total.member_cpu_seconds.median)} ms of CPU"
        for row, total in enumerate((summary.total for summary in summaries), 1)
        if total.member_cpu_seconds is not None
    ]
    if not rows:
        return []
    return [f"members of a committee are not among the devices: {'; '.join(rows)} of a member"]


def to_json(summaries: Sequence[Summary], baseline: str | None = None) -> str:
    """Return the summaries, and the ratios where there is something to compare, as JSON.

    An object with ``runs``, a list; with several runs, each has ``baseline``, the path of the run
    that it is compared with, and ``baseline_over_run``. What is undefined is null.
    """
    runs = [summary.as_dict() for summary in summaries]
    if len(runs) > 1:
        compared = baselines(summaries, baseline)
        for run, summary, base in zip(runs, summaries, compared, strict=True):
            run["baseline"] = None if base is None else base.path
            run["baseline_over_run"] = None if base is None else ratios(base, summary)
    return jsontext.dumps({"runs": runs})


def details(run: Run) -> list[Facts]:
    """Return everything that was set and found out for a run."""
    about = {"command": repeating.command(run), "run": run.run_id, "started": run.started}
    about |= {"finished": run.finished or "not finished"}
    options = {name: value for name, value in run.config.items() if name != "promises"}
    found = [Facts(about)]
    known = dict(sorted(run.environment.items()))
    ranks = known.pop(PLACEMENT, None)
    found += [Facts(dict(sorted(options.items())), "options"), Facts(known, "environment")]
    found.append(Facts(_placement(ranks, run.server_ranks), "ranks"))
    for launch in run.resumed:
        title = f"resumed from round {launch['first_round']}"
        known = dict(sorted(launch.items()))
        ranks = known.pop(PLACEMENT, None)
        found += [
            Facts(known, title),
            Facts(_placement(ranks, run.server_ranks), f"ranks, {title}"),
        ]
    return [one for one in found if one.known]


def _placement(ranks: Any, servers: int) -> dict[str, str]:
    """Return where ranks and devices were: those of one host and the same cores together.

    The first `servers` ranks are the server's.
    """
    together: dict[str, tuple[list[int], int]] = {}
    for rank, place in enumerate(ranks or []):
        where = f"{place.get('host')}, hardware threads {place.get('cores') or 'not known'}"
        members, devices = together.get(where, ([], 0))
        together[where] = [*members, rank], devices + len(place["devices"])
    return {
        where: f"{_rows(members, 'rank')}: {'server and ' if members[0] < servers else ''}"
        f"{devices} {'device' if devices == 1 else 'devices'}"
        for where, (members, devices) in together.items()
    }


def promises(run: Run) -> list[str]:
    """Return what the run's protocol hides, and how surely, as it was recorded."""
    sentences = [*(run.config.get("promises") or [])]
    found = run.promise_failure
    if found is not None and np.isfinite(found).any():
        worst = float(np.nanmax(found))
        chance = f", but for a probability of 2^{math.log2(worst):.1f}" if worst else ""
        where = f"{_checked(run, np.isfinite(found))} against the devices that were present"
        sentences.append(f"checked {where}: it held{chance}")
    return sentences


def _checked(run: Run, checked: NDArray[np.bool_]) -> str:
    """Return in which rounds promises were checked, and of how many devices if that differs."""
    count = int(checked.sum())
    rounds = f"in each of {counted(count, 'round')}" if count > 1 else "in the only round"
    if count < len(checked):
        rounds += f" that had devices, of {len(checked)},"
    devices = run.training.get(Metric.PARTICIPANTS)
    if devices is None or devices[checked].min() == devices[checked].max():
        return rounds
    smallest, largest = int(devices[checked].min()), int(devices[checked].max())
    return f"{rounds.rstrip(',')}, each as it is for its own {smallest} to {largest} devices,"


def warnings_of(summary: Summary) -> list[str]:
    """Return what speaks against the measured seconds of a run, or of repeats, a sentence each."""
    found = list(summary.warnings)
    first, median = summary.first_round_seconds, summary.round_seconds.median
    if first is not None and not summary.rounds_warmup and first > _SLOW_START * median:
        advice = "" if summary.algorithm else "; see --warmup"  # which training has not
        found.append(
            f"the first round took {first / median:.1f} times the median and was measured: "
            f"connections and buffers are set up in it{advice}"
        )
    p_value = summary.repeats_p_value
    if p_value is not None and p_value <= DIFFERENT:
        found.append(
            f"the {summary.repeats} launches differ more than their rounds do (rank test, "
            f"p = {p_value:.2g}): the interval is of these launches, not of a further one"
        )
    return found


def render_run(summary: Summary) -> str:
    """Return the cost of one run as text: facts and phases."""
    return f"{facts(summary).text()}\n\n{phases(summary).text()}"


def render_promises(run: Run) -> str:
    """Return :func:`promises` as text, "" if nothing was recorded."""
    return "\n".join(paragraph(sentence, "- ") for sentence in promises(run))


def _phase_row(phase: PhaseSummary, others: Sequence[str]) -> list[Any]:
    return [
        *(phase.name, phase.bytes_up_mean, phase.bytes_down_mean),
        *dataclasses.astuple(phase.device_cpu_seconds),
        *dataclasses.astuple(phase.wall_seconds),
        *(phase.server_cpu_seconds.median, phase.modelled_seconds),
        *(figure for party in others for figure in _other_row(phase, party)),
    ]


def _other_row(phase: PhaseSummary, party: str) -> list[Any]:
    names = ("bytes_up_mean", "bytes_down_mean", "cpu_seconds")
    up, down, cpu = (getattr(phase, f"{party}_{name}") for name in names)
    return [up, down, cpu.median]


def _remarks(summary: Summary) -> str:
    """Return the files of a row, and how surely its seconds are known."""
    text = ", ".join(Path(path).name for path in summary.files) or summary.name
    if summary.repeats > 1:
        text = f"{counted(summary.repeats, 'repeat')}: {text}"
    remarks = [] if summary.status == "complete" else [_status(summary.status)]
    if summary.rounds_validated < summary.rounds_total:
        remarks.append(f"validated {summary.rounds_validated}/{summary.rounds_total}")
    if remarks:
        text += f" ({', '.join(remarks)})"
    text += _over_launches(summary)
    interval = summary.round_seconds_interval
    if interval.known:
        text += (
            f"; round measured {seconds(summary.round_seconds.median)} s, 95 % interval "
            f"{formats.interval(interval.low, interval.high)} s over "
            f"{formats.counted(summary.rounds_measured, 'round')}"
        )
    else:
        text += f"; measured rounds: {summary.rounds_measured}"
    return text


def _over_launches(summary: Summary) -> str:
    """Return how far what several launches reached varies; "" for one, and for benchmarks."""
    if summary.repeats < 2:
        return ""
    found = summary.reached
    parts = [
        f"{name} {formats.number(one.median)} {_ends(one)}"
        for name, one in (("accuracy", found.accuracy), ("epsilon", found.epsilon_proven))
        if one.median is not None and one.least != one.most
    ]
    if found.target is not None and found.launches_at_target != summary.repeats:
        parts.append(f"{found.launches_at_target} of {summary.repeats} reached the target")
    return "".join(f"; {part}" for part in parts)


def _ends(found: OverLaunches) -> str:
    if found.interval.known:
        low, high, what = found.interval.low, found.interval.high, "95 % interval, order statistics"
    else:
        assert found.least is not None
        assert found.most is not None
        low, high, what = found.least, found.most, "lowest and highest"
    return f"{formats.interval(low, high, formats.number)} ({what})"


def _rows(rows: Sequence[int], what: str = "row") -> str:
    """Return increasing numbers in words: ``row 3``, or ``rows 1 to 4, 7``."""
    # Consecutive numbers differ from their places by the same.
    found = groupby(enumerate(rows), lambda numbered: numbered[1] - numbered[0])
    runs = [[row for _, row in numbered] for _, numbered in found]
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{what}{'s' if len(rows) > 1 else ''} {', '.join(parts)}"


def _first_round(summary: Summary) -> str | None:
    first = summary.first_round_seconds
    if first is None:
        return None
    kind = "warm-up" if summary.rounds_warmup else "measured"
    median = summary.round_seconds.median
    times = f", {first / median:.2f} times the median" if median > 0 else ""
    return f"{seconds(first)} s ({kind}{times})"


def _measured(summary: Summary) -> str | None:
    spread = _spread(summary.round_seconds)
    if spread is None:
        return None
    interval = summary.round_seconds_interval
    if not interval.known:
        return f"{spread}; no 95 % interval of the median: that takes 6 measured rounds"
    ends = formats.interval(interval.low, interval.high)
    return f"{spread}; 95 % interval of the median {ends} s (order statistics)"


def _spread(found: Percentiles) -> str | None:
    if math.isnan(found.median):
        return None
    return (
        f"median {seconds(found.median)} s, p95 {seconds(found.p95)} s, max {seconds(found.max)} s"
    )


def _status(status: str) -> str:
    return "running, or killed before its end" if status == "running" else status
