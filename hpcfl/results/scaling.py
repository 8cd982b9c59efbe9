"""Speed-up and parallel efficiency of rounds with more ranks, nodes or threads.

A round of N devices and d coordinates does the work W = N d. With x resources it takes T_x seconds,
the median of the measured rounds. Compared with the base, the fewest resources of a line,

    speed-up(x)   = (W_x / T_x) / (W_base / T_base)
    efficiency(x) = speed-up(x) x_base / x

In strong scaling W is constant, so the speed-up is T_base / T_x. In weak scaling W / x is constant,
so the efficiency is T_base / T_x (Gustafson 1988).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import names
from hpcfl.options.report import SCALES
from hpcfl.report.table import RULE, Table, count, number
from hpcfl.results import pooling
from hpcfl.results.columns import COLUMNS, telling_apart
from hpcfl.results.reader import Run
from hpcfl.results.summary import Summary

# Facts of the machine that may differ along a line: they depend on how many ranks there are, and
# where. All other facts are the same.
_GROWS = {
    *("transport", "ranks", "host_ranks", "mapping", "binding", "networks"),
    *("cores_usable", "fault_tolerance"),
}
# Options that do not change the work of a round.
_FREE = {*names(BenchOptions, "repeat"), *names(BenchOptions, "repeat if any")}
_SECONDS = ("round_seconds_median", "round_seconds_low", "round_seconds_high")


def lacking(run: Run, against: str) -> str | None:
    """Return why a run cannot be a point in a scaling table or figure; None if it can."""
    ranks, hosts = run.environment.get("ranks"), run.environment.get("host_ranks") or []
    if run.training or not run.measured.any() or ranks is None:
        return "is not of hpcfl bench with measured rounds and a known number of ranks"
    if against in ("ranks", "nodes") and ranks == 1:
        return "is of one process, where nothing is sent and nobody waits: start it by mpirun -n"
    if against == "nodes" and len({*hosts}) != 1:
        return "does not record as many ranks on each of its nodes"
    return None


def resources(run: Run, against: str) -> int:
    """Return the amount that a run had of `against`, one of `SCALES`."""
    if against == "nodes":
        return len(run.environment["host_ranks"])
    if against == "server-ranks":
        return run.server_ranks
    if against == "threads":
        return int(run.config.get("threads") or 1)
    ranks = int(run.environment["ranks"])
    return 1 if ranks == 1 else min(run.devices, ranks - run.server_ranks - run.helpers)


def lines(runs: Sequence[Run], against: str) -> list[list[Run]]:
    """Return lines of runs with one configuration and machine, which differ in their resources.

    If each number of devices and parameters was measured on several amounts of resources, each has
    its own line (strong scaling). Otherwise these numbers grow along a line (weak scaling).
    """
    alike: dict[str, dict[tuple[int, int], list[Run]]] = {}
    for run in runs:
        asked = run.config if run.asked is None else run.asked
        varied = {"devices", "dim", against.replace("-", "_"), *_FREE}
        same = {name: value for name, value in asked.items() if name not in varied}
        same |= {name: it for name, it in pooling.machine(run).items() if name not in _GROWS}
        if against not in ("ranks", "nodes"):
            same["ranks"] = run.environment["ranks"]
        key = json.dumps([run.protocol, same], sort_keys=True, default=str)
        alike.setdefault(key, {}).setdefault((run.devices, run.dim), []).append(run)
    found: list[list[Run]] = []
    for sizes in alike.values():
        strong = all(len({resources(run, against) for run in one}) > 1 for one in sizes.values())
        found += sizes.values() if strong else [[run for one in sizes.values() for run in one]]
    return [sorted(line, key=lambda run: resources(run, against)) for line in found]


def table(runs: Sequence[Run], against: str) -> Table:
    """Return a table with a row for each point of each line; a point pools its launches.

    A row has no speed-up if ranks or their threads shared cores, or if that is not recorded.
    """
    summaries: list[list[tuple[Run, Summary]]] = [
        [(pool.runs[0], pool.summary(pool.runs[0].link())) for pool in pooling.group(line)]
        for line in lines(runs, against)
    ]
    every = [summary for line in summaries for _, summary in line]
    own = ("devices", "dim", against.replace("-", "_"))
    chosen = [
        COLUMNS["protocol"],
        *(column for column in telling_apart(every) if column.name not in own),
        count("x", SCALES[against]),
        count("ranks", "all ranks"),
        *(COLUMNS[name] for name in ("devices", "dim", *_SECONDS)),
        number("speed_up", "speed-up"),
        number("efficiency", "efficiency"),
        COLUMNS["all_cpu_seconds_median"],
    ]
    rows: list[Sequence[Any]] = []
    for line in summaries:
        rows += [RULE] if rows else []
        base: tuple[int, float] | None = None  # resources, and work per second
        for run, summary in line:
            x = resources(run, against)
            found: dict[str, Any] = {"x": x}
            ratio, seconds = run.environment.get("oversubscription_ratio"), summary[_SECONDS[0]]
            if ratio is not None and ratio * resources(run, "threads") <= 1 and seconds > 0:
                rate = run.devices * run.dim / seconds
                base = base or (x, rate)
                found["speed_up"] = rate / base[1]
                found["efficiency"] = rate / base[1] * base[0] / x
            rows.append([found.get(one.name, summary.value(one.name)) for one in chosen])
    warnings = dict.fromkeys(sentence for summary in every for sentence in summary.warnings)
    return Table(
        chosen,
        rows,
        f"Scaling over {SCALES[against]}",
        [
            "round: median elapsed seconds of the measured rounds, from and to: its 95 % interval; "
            "all CPU: of all devices, helpers and the server together",
            "speed-up: work (N times d) a second over that of the first row of a line that has "
            "one; efficiency: speed-up over how many times as many there are",
            "neither is given where ranks or their threads share cores, or files do not tell",
            *(f"warning: {sentence}" for sentence in warnings),
        ],
    )
