"""What the ranks of a run did with their time, as a table and as a trace for Perfetto or Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.report.formats import counted
from hpcfl.report.table import Table, label, seconds
from hpcfl.results.reader import Run
from hpcfl.results.record import Floats
from hpcfl.system import outputs

FORMAT = "hpcfl-trace/1"
_PARTS = {"computing": "computing", "mpi": "in MPI", "waiting": "waiting"}


@dataclass(frozen=True, repr=False)
class RankTimes:
    """Seconds of every round, phase and rank, shape (R, P, ranks); NaN where nothing is known."""

    begin: Floats  # on the server's clock, since the first rank began the round
    end: Floats
    computing: Floats
    mpi: Floats
    waiting: Floats
    skew: Floats  # of the ranks that leave the barrier before a round, shape (R,)
    clock_uncertainty: Floats  # the largest of any rank's clock, shape (R,)

    @property
    def ranks(self) -> int:
        """Number of ranks, the server's included."""
        return self.begin.shape[2]


def rank_times(run: Run) -> RankTimes | None:
    """Return what the ranks did with their time; None for a file that does not tell."""
    found = (
        *(run.begin_seconds, run.end_seconds, run.computing_seconds, run.mpi_seconds),
        *(run.waiting_seconds, run.skew_seconds, run.clock_uncertainty_seconds),
    )
    known = [values for values in found if values is not None]
    return RankTimes(*known) if len(known) == len(found) and known[0].size else None


def shares(run: Run) -> Table | None:
    """Return how ranks spent their time in each phase; None for one rank, and if it is not known.

    Medians over the measured rounds, of the mean over the server's ranks, the helpers', and all
    others.
    """
    times = rank_times(run)
    if times is None or times.ranks < 2 or not run.measured.any():
        return None
    names = {"server": "server", "helper": "helpers" if run.helpers else "", "device": "devices"}
    parties = {names[who]: ranks for who, ranks in run.ranks_of.items() if names[who]}
    columns, values = [label("phase")], []
    for name, words in _PARTS.items():
        kept = getattr(times, name)[run.measured]
        for who, ranks in parties.items():
            values.append([_typical(kept[:, phase, ranks]) for phase in range(len(run.phases))])
            columns.append(seconds(f"{name}_{who}", f"{who} {words}"))
    skew = 1e3 * float(np.nanmedian(times.skew[run.measured]))
    return Table(
        columns,
        list(zip(run.phases, *values, strict=True)),
        f"What {counted(times.ranks, 'rank')} did with their time",
        [
            f"server: {'its rank' if run.server_ranks == 1 else 'mean over its ranks'}; "
            "devices: mean over the other ranks; medians over measured rounds",
            f"ranks leave the barrier before a round within {skew:.3g} ms (median)",
        ],
    )


def _typical(seconds: Floats) -> float:
    """Return the median over rounds of the mean over ranks, shape (rounds, ranks).

    Of what is known; NaN if nothing is, as of phases that come before all rounds.
    """
    means = [values[np.isfinite(values)].mean() for values in seconds if np.isfinite(values).any()]
    return float(np.median(means)) if means else np.nan


def write_trace(path: Path, runs: Sequence[Run]) -> int:
    """Write the trace of all rounds of some runs; return the number of events.

    The format is that of Chrome's Trace Event Profiling Tool. A run is a process and a rank a
    thread of it. A phase is a slice, and within it are slices of computing, time in MPI, and
    waiting, in this order, whatever the order was. A UsageError says that no run records the times
    of ranks, or that the file cannot be written.
    """
    events = [event for number, run in enumerate(runs) for event in _events(number, run)]
    if not events:
        raise UsageError("none of the runs records the times of ranks, which hpcfl bench writes")
    # What it is comes first: by that an older trace is known that may be replaced.
    document = {"otherData": {"format": FORMAT}, "displayTimeUnit": "ms", "traceEvents": events}
    outputs.write(path, outputs.TRACE, json.dumps(document, allow_nan=False))
    return len(events)


def _events(number: int, run: Run) -> Iterator[dict[str, Any]]:
    times = rank_times(run)
    if times is None:
        return
    named = {"ph": "M", "pid": number}
    title = f"{run.protocol}, N = {run.devices}, {run.path.name}"
    yield named | {"name": "process_name", "tid": 0, "args": {"name": title}}
    for rank in range(times.ranks):
        name = {"name": run.rank_name(rank, "rank ")}
        yield named | {"name": "thread_name", "tid": rank, "args": name}
    # When a round began is not recorded: they follow each other with a little in between.
    lengths = 1.01 * np.nanmax(times.end, axis=(1, 2), initial=0.0) + 1e-6
    starts = np.cumsum([0.0, *lengths])
    for index, phase, rank in np.argwhere(np.isfinite(times.begin)).tolist():
        kind = "warm-up" if run.warmup[index] else "measured"
        place = {"ph": "X", "pid": number, "tid": rank, "cat": kind}
        begin, end = (
            float(starts[index] + one[index, phase, rank]) for one in (times.begin, times.end)
        )
        yield place | {"name": run.phases[phase], "args": {"round": index}} | _span(begin, end)
        for part in _PARTS:
            spent = float(getattr(times, part)[index, phase, rank])
            if spent > 0:
                stop = min(end, begin + spent)
                yield place | {"name": part} | _span(begin, stop)
                begin = stop


def _span(begin: float, end: float) -> dict[str, float]:
    return {"ts": round(1e6 * begin, 3), "dur": round(1e6 * (end - begin), 3)}
