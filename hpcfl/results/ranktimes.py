"""What the ranks of a run did with their time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcfl.report.formats import counted
from hpcfl.report.table import Table, label, seconds
from hpcfl.results.reader import Run
from hpcfl.results.record import Floats

_PARTS = {"computing": "computing", "mpi": "in MPI", "waiting": "waiting"}


class RankTimes(NamedTuple):
    """Seconds of every round, phase and rank, shape (R, P, ranks); NaN where nothing is known."""

    begin: Floats  # on the server's clock, since the first rank began the round
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
        *(run.begin_seconds, run.computing_seconds, run.mpi_seconds, run.waiting_seconds),
        *(run.skew_seconds, run.clock_uncertainty_seconds),
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
    for part, (name, words) in zip(times[1:4], _PARTS.items(), strict=True):
        for who, ranks in parties.items():
            kept = part[run.measured][..., ranks]
            values.append([_typical(kept[:, phase]) for phase in range(len(run.phases))])
            columns.append(seconds(f"{name}_{who}", f"{who} {words}"))
    skew = 1e3 * float(np.nanmedian(times.skew[run.measured]))
    return Table(
        columns,
        list(zip(run.phases, *values, strict=True)),
        f"What {counted(times.ranks, 'rank')} did with their time",
        [
            "means over the ranks of a party; medians over measured rounds",
            f"ranks leave the barrier before a round within {skew:.3g} ms (median)",
        ],
    )


def _typical(seconds: Floats) -> float:
    """Return the median over rounds of the mean over ranks, shape (rounds, ranks).

    Of what is known; NaN if nothing is, as of phases that come before all rounds.
    """
    means = [values[np.isfinite(values)].mean() for values in seconds if np.isfinite(values).any()]
    return float(np.median(means)) if means else np.nan
