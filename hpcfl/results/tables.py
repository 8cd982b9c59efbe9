"""Tables and sentences on what runs cost; how they look is for :mod:`hpcfl.report.table`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.report import formats, jsontext, table
from hpcfl.report.formats import counted, seconds
from hpcfl.report.table import RULE, Column, Facts, Table, label, paragraph, size
from hpcfl.results.columns import (
    COLUMNS,
    COMMON,
    COMMON_IF_KNOWN,
    Choice,
    Row,
    choose,
    telling_apart,
)
from hpcfl.results.reader import Run
from hpcfl.results.schema import PLACEMENT
from hpcfl.results.statistics import DIFFERENT, PERCENTILES
from hpcfl.results.summary import RATIOS, Summary, baselines, ratio

# A first round of so many times the median is warned of where it was measured.
_SLOW_START = 2.0

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
    """Return the cost of one run, a phase to a row, and of whole rounds in the last row."""
    # Parties that only some protocols have.
    others = [one for one in ("member", "helper") if f"{one}_bytes_up_mean" in summary.phases[-1]]
    columns = (*_PHASES, *(column for party in others for column in _columns_of(party)))
    rows: list[Sequence[Any]] = [
        [phase[column.name] for column in columns] for phase in summary.phases
    ]
    return Table(
        columns,
        [*rows[:-1], RULE, rows[-1]],
        f"A round of {summary['protocol']}, N = {summary['devices']}, "
        f"d = {summary['dim']}{_of_model(summary)}",
        [
            "device: the slowest device of each round; rank: the slowest of devices and server",
            "B/device: mean over the devices that sent or received any; total: over the survivors",
            *(
                f"{party}: mean bytes of one, and the slowest one's CPU time; not in the devices'"
                for party in others
            ),
            *(f"warning: {sentence}" for sentence in warnings_of(summary)),
        ],
    )


def facts(summary: Summary) -> Facts:
    """Return what a run was, how it went, and how long its rounds took."""
    one = summary.figures
    survivors = "none measured"
    if one["survivors_mean"] is not None:
        survivors = (
            f"{one['survivors_mean']:.4g} of {one['devices']} a round on average "
            f"(fewest {one['survivors_min']}, most {one['survivors_max']})"
        )
    rounds = f"{one['rounds_measured']} measured + {one['rounds_warmup']} of warm-up"
    reason = one["stop_reason"]
    if reason in STOPPED:
        rounds += f"; stopped because {STOPPED[reason]} ({reason})"
    idle = f", of which {one['idle_ranks']} took no part" if one["idle_ranks"] else ""
    loopback = "none (one process)" if one["transport"] == "loopback" else "not recorded"
    launches = f"{counted(one['launches'], 'launch')}: {', '.join(summary.files)}"
    return Facts(
        {
            "file": one["path"],
            "status": _status(summary),
            "protocol": one["protocol"],
            "devices N": one["devices"],
            "parameters d": f"{one['dim']}{_of_model(summary)}",
            "rounds": rounds,
            "validated": f"{one['rounds_validated']}/{one['rounds_total']}",
            "survivors": survivors,
            "transport": one["transport"] or "not recorded",
            "ranks": f"{one['ranks']}{idle}" if (one["ranks"] or 1) > 1 else None,
            "MPI library": one["mpi_library"] or loopback,
            "link model": one["link"],
            "repeats": launches if one["launches"] > 1 else None,
            "memory": _memory(summary),
            "first round": _first_round(summary),
            "measured": _measured(summary),
            "modelled": _spread(summary, "modelled_round_seconds"),
        }
    )


def _of_model(summary: Summary) -> str:
    """Return the model that the vectors are as long as, if it is recorded."""
    model = summary.config.get("model")
    return "" if model is None else f" ({formats.words(model)})"


def _memory(summary: Summary) -> str | None:
    """Return what ranks had resident at the peak of a round, None if nothing is known."""
    # In one process devices and server are together.
    alone = summary["device_peak_bytes"] is None
    parts = [
        f"{who} {formats.amount(summary[f'{party}_peak_bytes'])}"
        for party, who in (
            ("server", "the process" if alone else "the server's largest rank"),
            ("helper", "the largest helper's"),
            ("device", "the largest other rank"),
        )
        if summary[f"{party}_peak_bytes"] is not None
    ]
    return f"{', '.join(parts)} at the peak of a round" if parts else None


def _first_round(summary: Summary) -> str | None:
    first, median = summary["first_round_seconds"], summary["round_seconds_median"]
    if first is None:
        return None
    kind = "warm-up" if summary["rounds_warmup"] else "measured"
    times = f", {first / median:.2f} times the median" if median > 0 else ""
    return f"{seconds(first)} s ({kind}{times})"


def _measured(summary: Summary) -> str | None:
    spread = _spread(summary, "round_seconds")
    if spread is None:
        return None
    ends = _interval(summary)
    if ends is None:
        return f"{spread}; no 95 % interval of the median: that takes 6 measured rounds"
    return f"{spread}; 95 % interval of the median {ends} s (order statistics)"


def _interval(summary: Summary) -> str | None:
    low, high = summary["round_seconds_low"], summary["round_seconds_high"]
    return None if math.isnan(low) else formats.interval(low, high)


def _spread(summary: Summary, name: str) -> str | None:
    if math.isnan(summary[f"{name}_median"]):
        return None
    return ", ".join(f"{of} {seconds(summary[f'{name}_{of}'])} s" for of in PERCENTILES)


def _status(summary: Summary) -> str:
    status = str(summary["status"])
    return "running, or killed before its end" if status == "running" else status


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
        values.append([row[choice.name] for choice in chosen])
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
            *_about_figures(rows, {choice.name for choice in chosen}),
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
    for name, choice in COLUMNS.items():
        values = [row[name] for row in rows]
        known = {value for value in values if formats.has_value(value)}
        if not choice.shown or not known:
            continue
        everywhere = name in COMMON and None not in values
        if len(known) == 1 and (everywhere or name in COMMON_IF_KNOWN):
            (told,) = map(choice.column.format, known)
            # The notes say at what link seconds are modelled.
            same += [f"{choice.column.title} = {told}"] if name != "link" else []
        else:
            chosen.append(choice)
    first = max(i for i, choice in enumerate(chosen) if choice.name in _TOLD) + 1
    return [*chosen[:first], *telling_apart(rows), *chosen[first:]], same


def _about_baselines(rows: Sequence[Row]) -> list[str]:
    """Return what the ratios of which rows are to."""
    bases = [row for row in rows if row.summary is row.baseline]
    if not bases:
        return []
    variants = ", ".join(dict.fromkeys(row["protocol"] for row in bases))
    each = ", each for the rows between the same lines" if len(bases) > 1 else ""
    alone = [row.number for row in rows if row.baseline is None]
    without = f"; {_rows(alone)}: none of the same size, dropout and link" if alone else ""
    return [
        f"baseline: {_rows([row.number for row in bases])} ({variants}){each}{without}; a ratio is "
        "baseline / this run: above 1 this run is cheaper"
    ]


def _about_figures(rows: Sequence[Row], names: set[str]) -> list[str]:
    """Return how the figures of some columns are computed, and what they leave out."""
    links = {row["link"] for row in rows}
    modelled = f"; modelled: at {links.pop()}" if len(links) == 1 else ""
    said = [
        "times are medians over measured rounds, bytes are means; device: the slowest of each "
        f"round{modelled}"
    ]
    if any("to_target" in name for name in names):
        said.append(
            "to target: from the first round until held-out accuracy was there, by all devices"
        )
    members = [
        f"row {row.number}: {formats.count(row['member_bytes_up_mean'])} B up, "
        f"{formats.milliseconds(row['member_cpu_seconds_median'])} ms of CPU"
        for row in rows
        if row["member_cpu_seconds_median"] is not None
    ]
    if members:
        told = f"{'; '.join(members)} of a member"
        said.append(f"members of a committee are not among the devices: {told}")
    return said


def to_json(summaries: Sequence[Summary], baseline: str | None = None) -> str:
    """Return the summaries, and the ratios where there is something to compare, as JSON.

    An object with ``runs``, a list; with several runs, each has ``baseline``, the path of the run
    that it is compared with, and the ratios. What is undefined is null.
    """
    runs = [summary.as_dict() for summary in summaries]
    if len(runs) > 1:
        compared = baselines(summaries, baseline)
        for run, summary, base in zip(runs, summaries, compared, strict=True):
            run["baseline"] = None if base is None else base["path"]
            run |= {name: ratio(base, summary, name) for name in RATIOS}
    return jsontext.dumps({"runs": runs})


def details(run: Run) -> list[Facts]:
    """Return everything that was set and found out for a run."""
    about = {"command": command(run), "run": run.run_id, "started": run.started}
    about |= {"finished": run.finished or "not finished"}
    options = {name: value for name, value in run.config.items() if name != "promises"}
    found = [Facts(about), Facts(dict(sorted(options.items())), "options")]
    launches = {"": run.environment}
    launches |= {f", resumed from round {one['first_round']}": one for one in run.resumed}
    for which, environment in launches.items():
        known = dict(sorted(environment.items()))
        ranks = known.pop(PLACEMENT, None)
        found.append(Facts(known, f"environment{which}"))
        found.append(Facts(_placement(ranks, run.server_ranks), f"ranks{which}"))
    return [one for one in found if one.known]


def command(run: Run) -> str:
    """Return the command line of a run with what started its ranks: ``mpirun -n 101 hpcfl ...``."""
    ranks = run.environment.get("ranks")
    if run.environment.get("transport") == "netlab":
        program, _, arguments = run.command.partition(" ")
        hosts = run.environment.get("netlab_hosts")
        return f"{program} netlab --hosts {hosts} ... -- {arguments}"
    return f"mpirun -n {ranks} {run.command}" if type(ranks) is int and ranks > 1 else run.command


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
        f"{counted(devices, 'device')}"
        for where, (members, devices) in together.items()
    }


def promises(run: Run) -> list[str]:
    """Return what the run's protocol hides, and how surely, as it was recorded."""
    sentences = [*(run.config.get("promises") or [])]
    found = run.promise_failure
    checked = 0 if found is None else int(np.isfinite(found).sum())
    if found is not None and checked:
        worst = float(np.nanmax(found))
        chance = f", except with probability 2^{math.log2(worst):.1f}" if worst else ""
        sentences.append(
            f"checked in {checked} of {counted(run.rounds, 'round')} against the devices that were "
            f"present: it held{chance}"
        )
    return sentences


def warnings_of(summary: Summary) -> list[str]:
    """Return what speaks against the measured seconds of a run, or of repeats, a sentence each."""
    found = list(summary.warnings)
    first, median = summary["first_round_seconds"], summary["round_seconds_median"]
    if first is not None and not summary["rounds_warmup"] and first > _SLOW_START * median:
        advice = "" if summary["algorithm"] else "; see --warmup"  # which training has not
        found.append(
            f"the first round took {first / median:.1f} times the median and was measured: "
            f"connections and buffers are set up in it{advice}"
        )
    p_value = summary["launches_p_value"]
    if p_value is not None and p_value <= DIFFERENT:
        found.append(
            f"the {summary['launches']} launches differ more than their rounds do (rank test, "
            f"p = {p_value:.2g}): the interval is of these launches, not of a further one"
        )
    return found


def render_run(summary: Summary) -> str:
    """Return the cost of one run as text: facts and phases."""
    return f"{facts(summary).text()}\n\n{phases(summary).text()}"


def render_promises(run: Run) -> str:
    """Return :func:`promises` as text, "" if nothing was recorded."""
    return "\n".join(paragraph(sentence, "- ") for sentence in promises(run))


def _remarks(summary: Summary) -> str:
    """Return the files of a row, and how surely its seconds are known."""
    text = ", ".join(Path(path).name for path in summary.files)
    if summary["launches"] > 1:
        text = f"{counted(summary['launches'], 'repeat')}: {text}"
    remarks = [] if summary["status"] == "complete" else [_status(summary)]
    if not summary["validated"]:
        remarks.append(f"validated {summary['rounds_validated']}/{summary['rounds_total']}")
    if remarks:
        text += f" ({', '.join(remarks)})"
    text += _over_launches(summary)
    ends = _interval(summary)
    if ends is None:
        return f"{text}; measured rounds: {summary['rounds_measured']}"
    return (
        f"{text}; round measured {seconds(summary['round_seconds_median'])} s, 95 % interval "
        f"{ends} s over {counted(summary['rounds_measured'], 'round')}"
    )


def _over_launches(summary: Summary) -> str:
    """Return how far what several launches reached varies; "" for one, and for benchmarks."""
    launches = summary["launches"]
    parts = [
        f"{words} {formats.number(summary[name])} "
        f"{formats.interval(summary[f'{name}_least'], summary[f'{name}_most'], formats.number)} "
        "(lowest and highest)"
        for name, words in (("accuracy", "accuracy"), ("epsilon_proven", "epsilon"))
        if summary[f"{name}_least"] != summary[f"{name}_most"]
    ]
    if summary["launches_at_target"] not in (None, launches) and launches > 1:
        parts.append(f"{summary['launches_at_target']} of {launches} reached the target")
    return "".join(f"; {part}" for part in parts)


def _rows(rows: Sequence[int], what: str = "row") -> str:
    """Return increasing numbers in words: ``row 3``, or ``rows 1 to 4, 7``."""
    # Consecutive numbers differ from their places by the same.
    found = groupby(enumerate(rows), lambda numbered: numbered[1] - numbered[0])
    runs = [[row for _, row in numbered] for _, numbered in found]
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{what}{'s' if len(rows) > 1 else ''} {', '.join(parts)}"
