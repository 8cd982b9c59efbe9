"""What the ranks did with time and memory in a round: computed, were in MPI, or waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcfl.comm import calls
from hpcfl.comm.transport import Transport
from hpcfl.results.record import RoundRecord


@dataclass(frozen=True)
class Stretch:
    """A step of a phase as one rank saw it, on its own clock, and the numbers of its calls."""

    phase: int  # its index
    begin: float
    end: float
    calls: range


def enter(
    record: RoundRecord,
    transport: Transport,
    began: float,
    stretches: Sequence[Stretch],
    memory: tuple[float, float],
) -> None:
    """Enter into the server's record of a round what all ranks did; every rank calls this.

    `began` is when the rank left the barrier before the round, `memory` what it had resident then,
    and at the most in the round, in bytes. All ranks have the same number of stretches, with the
    same calls.
    """
    ranks, offset = transport.placement.ranks, transport.clock_offset_seconds
    count = transport.calls.number if not stretches else stretches[-1].calls.stop
    mine = [began + offset, offset, transport.clock_uncertainty_seconds, *memory]
    mine += [time + offset for each in stretches for time in (each.begin, each.end)]
    everybodys = transport.collect(np.array(mine))
    all_calls = transport.collect(transport.calls.table(count, offset))
    if everybodys is None or all_calls is None:
        return
    # A rank that died is all zeros.
    alive = everybodys[:, 0] > 0
    starts = everybodys[alive, 0]
    record.skew_seconds = float(starts.max() - starts.min())
    record.clock_offset_seconds = np.where(alive, everybodys[:, 1], np.nan)
    record.clock_uncertainty_seconds = float(everybodys[alive, 2].max())
    record.resident_bytes, record.peak_bytes = np.where(alive, everybodys[:, 3:5].T, np.nan)
    in_mpi, waited = calls.split(all_calls)
    shape = (len(record.bytes_up), ranks)
    sums = {name: np.zeros(shape) for name in ("elapsed", "mpi_seconds", "waiting_seconds")}
    first, last = np.full(shape, np.inf), np.full(shape, -np.inf)
    for index, each in enumerate(stretches):
        begin, end = everybodys[:, 5 + 2 * index : 7 + 2 * index].T - starts.min()
        phase, numbers = each.phase, slice(each.calls.start, each.calls.stop)
        first[phase], last[phase] = np.minimum(first[phase], begin), np.maximum(last[phase], end)
        sums["elapsed"][phase] += end - begin
        sums["mpi_seconds"][phase] += in_mpi[:, numbers].sum(axis=1)
        sums["waiting_seconds"][phase] += waited[:, numbers].sum(axis=1)
    elapsed = sums.pop("elapsed")
    sums["computing_seconds"] = elapsed - sums["mpi_seconds"] - sums["waiting_seconds"]
    known = np.isfinite(first) & alive
    for name, values in (*sums.items(), ("begin_seconds", first), ("end_seconds", last)):
        # Clocks of hosts are compared to microseconds: a little less than nothing is nothing.
        setattr(record, name, np.where(known, np.maximum(values, 0), np.nan))
