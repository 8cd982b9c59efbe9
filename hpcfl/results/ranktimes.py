"""Table of the time that the ranks of a run spent computing, in MPI and waiting."""

from __future__ import annotations

import numpy as np

from hpcfl.report.formats import counted
from hpcfl.report.table import Table, label, seconds, size
from hpcfl.results.reader import Run
from hpcfl.results.record import Floats

MOST_RANKS = 33  # of a table with a row for each
_PARTS = {"computing": "computing", "mpi": "in MPI", "waiting": "waiting"}


def shares(run: Run) -> Table | None:
    """Return a table of how ranks spent their time in each phase; None if that is not recorded.

    Values are medians over the measured rounds of means over the ranks of a party: the server, the
    helpers or the devices. The result is also None for one rank, or without a measured round.
    """
    ranks = run.begin_seconds.shape[2]
    if ranks < 2 or not run.measured.any():
        return None
    names = {"server": "server", "helper": "helpers" if run.helpers else "", "device": "devices"}
    parties = {names[who]: places for who, places in run.ranks_of.items() if names[who]}
    columns, values = [label("phase")], []
    for name, words in _PARTS.items():
        part = getattr(run, f"{name}_seconds")
        for who, places in parties.items():
            kept = part[run.measured][..., places]
            values.append([_typical(kept[:, phase]) for phase in range(len(run.phases))])
            columns.append(seconds(f"{name}_{who}", f"{who} {words}"))
    skew = 1e3 * float(np.nanmedian(run.skew_seconds[run.measured]))
    return Table(
        columns,
        list(zip(run.phases, *values, strict=True)),
        f"What {counted(ranks, 'rank')} did with their time",
        [
            "means over the ranks of a party; medians over measured rounds",
            f"ranks leave the barrier before a round within {skew:.3g} ms (median)",
        ],
    )


def by_rank(run: Run) -> Table | None:
    """Return a table of each rank's memory and time in a round; None if that is not recorded.

    The result is also None for one rank, more than `MOST_RANKS`, or without a measured round.
    """
    ranks = run.begin_seconds.shape[2]
    if not 1 < ranks <= MOST_RANKS or not run.measured.any():
        return None
    spent = [np.nansum(getattr(run, f"{name}_seconds")[run.measured], axis=1).T for name in _PARTS]
    held = [values[run.measured].T for values in (run.resident_bytes, run.peak_bytes)]
    columns = [label("rank"), size("resident_bytes", "before"), size("peak_bytes", "peak")]
    columns += [seconds(f"{name}_seconds", words) for name, words in _PARTS.items()]
    rows = [
        [run.rank_name(rank, "devices on "), *(np.median(one[rank]) for one in (*held, *spent))]
        for rank in range(ranks)
    ]
    return Table(columns, rows, "Memory and time of each rank, medians over measured rounds")


def _typical(seconds: Floats) -> float:
    """Return the median over rounds of the mean over ranks, from an array (rounds, ranks).

    NaN entries are ignored. The result is NaN if all are, as in phases that precede all rounds.
    """
    means = [values[np.isfinite(values)].mean() for values in seconds if np.isfinite(values).any()]
    return float(np.median(means)) if means else np.nan
