"""Writes what ranks did with their time as a trace for Perfetto or Chrome.

The format is that of Chrome's Trace Event Profiling Tool: a JSON object with ``traceEvents``. A run
is a process and a rank a thread of it. A phase is a slice, and within it are slices of computing,
time in MPI, and waiting, in this order, whatever the order was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.results.ranktimes import RankTimes, rank_times
from hpcfl.results.reader import Run
from hpcfl.system import outputs

FORMAT = "hpcfl-trace/1"


def write(path: Path, runs: Sequence[Run]) -> int:
    """Write the trace of all rounds of some runs; return the number of events.

    A UsageError says that no run records the times of ranks, or that the file cannot be written.
    """
    events = [event for number, run in enumerate(runs) for event in _events(number, run)]
    if not events:
        raise UsageError("none of the runs records the times of ranks, which hpcfl bench writes")
    # What it is comes first: by that an older trace is known that may be replaced.
    document = {
        "otherData": {"format": FORMAT},
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }
    outputs.write(path, outputs.TRACE, json.dumps(document, allow_nan=False))
    return len(events)


def _events(number: int, run: Run) -> Iterator[dict[str, Any]]:
    times = rank_times(run)
    if times is None:
        return
    title = f"{run.protocol}, N = {run.devices}, {run.path.name}"
    yield _named("process_name", title, pid=number)
    for rank in range(times.ranks):
        yield _named("thread_name", run.rank_name(rank, "rank "), number, rank)
    start = 0.0
    for index in range(run.rounds):
        yield from _round(number, run, times, index, start)
        # When a round began is not recorded: they follow each other with a little in between.
        start += 1.01 * float(np.nanmax(times.end[index], initial=0.0)) + 1e-6


def _round(
    number: int, run: Run, times: RankTimes, index: int, start: float
) -> Iterator[dict[str, Any]]:
    kind = "warm-up" if run.warmup[index] else "measured"
    for phase, name in enumerate(run.phases):
        for rank in np.flatnonzero(np.isfinite(times.begin[index, phase])).tolist():
            place = {"ph": "X", "pid": number, "tid": rank}
            begin = start + float(times.begin[index, phase, rank])
            end = start + float(times.end[index, phase, rank])
            yield place | {"name": name, "cat": kind, "args": {"round": index}} | _span(begin, end)
            for part in ("computing", "mpi", "waiting"):
                seconds = float(getattr(times, part)[index, phase, rank])
                if seconds > 0:
                    stop = min(end, begin + seconds)
                    yield place | {"name": part, "cat": kind} | _span(begin, stop)
                    begin = stop


def _span(begin: float, end: float) -> dict[str, float]:
    return {"ts": round(1e6 * begin, 3), "dur": round(1e6 * (end - begin), 3)}


def _named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
