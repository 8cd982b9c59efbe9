"""What the ranks of a run did with their time, as its file tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfl.report import brief
from hpcfl.report.formats import counted
from hpcfl.report.table import Table, label, seconds
from hpcfl.results.reader import Run


@dataclass(frozen=True, repr=False)
class RankTimes:
    """Seconds of every round, phase and rank, shape (R, P, ranks); NaN where nothing is known."""

    begin: NDArray[np.float64]  # on the server's clock, since the first rank began the round
    end: NDArray[np.float64]
    computing: NDArray[np.float64]
    mpi: NDArray[np.float64]
    waiting: NDArray[np.float64]
    skew: NDArray[np.float64]  # of the ranks that leave the barrier before a round, shape (R,)
    clock_uncertainty: NDArray[np.float64]  # the largest of any rank's clock, shape (R,)

    def __repr__(self) -> str:
        rounds, phases, ranks = self.begin.shape
        return brief.line(
            "RankTimes", counted(rounds, "round"), counted(phases, "phase"), counted(ranks, "rank")
        )

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


def _typical(seconds: NDArray[np.float64]) -> float:
    """Return the median over rounds of the mean over ranks, shape (rounds, ranks).

    Of what is known; NaN if nothing is, as of phases that come before all rounds.
    """
    means = [values[np.isfinite(values)].mean() for values in seconds if np.isfinite(values).any()]
    return float(np.median(means)) if means else np.nan


def shares(run: Run) -> Table | None:
    """Return how ranks spent their time in each phase; None for one rank, and if it is not known.

    Medians over the measured rounds, of the mean over the server's ranks, the helpers', and all
    others.
    """
    times = rank_times(run)
    if times is None or times.ranks < 2 or not run.measured.any():
        return None
    columns = [label("phase")]
    values = []
    for name, words in (("computing", "computing"), ("mpi", "in MPI"), ("waiting", "waiting")):
        kept = getattr(times, name)[run.measured]
        helpers = {"helpers": run.helper_ranks} if run.helpers else {}
        parties = {"server": slice(run.server_ranks), **helpers, "devices": run.device_ranks}
        for who, ranks in parties.items():
            values.append([_typical(kept[:, phase, ranks]) for phase in range(len(run.phases))])
            columns.append(seconds(f"{name}_{who}", f"{who} {words}"))
    rows = [
        [phase, *(float(value[index]) for value in values)]
        for index, phase in enumerate(run.phases)
    ]
    skew = 1e3 * float(np.nanmedian(times.skew[run.measured]))
    return Table(
        columns,
        rows,
        f"What {counted(times.ranks, 'rank')} did with their time",
        [
            f"server: {'its rank' if run.server_ranks == 1 else 'mean over its ranks'}; "
            "devices: mean over the other ranks; medians over measured rounds",
            f"ranks leave the barrier before a round within {skew:.3g} ms (median)",
        ],
    )
