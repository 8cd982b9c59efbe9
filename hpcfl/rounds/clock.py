"""Times a round on every rank, adds up its costs, and finds how long ranks waited for others."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from hpcfl.comm import calls
from hpcfl.comm.transport import Transport
from hpcfl.results.record import SPENT, SPENT_BY_HELPERS, RoundRecord
from hpcfl.rounds.driver import Round, Stretch
from hpcfl.system import machine


def timed(transport: Transport, round_: Round) -> RoundRecord:
    """Play a round that all ranks start at once, and time it; every rank calls this.

    Return, at the server, the costs of all ranks and the elapsed time of the slowest one; elsewhere
    the costs of this rank. They exclude the making of vectors (`Round.prepare_seconds`).
    """
    anew = machine.forget_peak()
    resident, _ = machine.resident_bytes()
    transport.barrier()
    transport.calls = calls.Calls()
    start = time.perf_counter()
    round_.play()
    elapsed = time.perf_counter() - start - round_.prepare_seconds
    # A peak that could not be reset may come from an earlier round.
    peak = machine.resident_bytes()[1] if anew else math.nan
    record = round_.ledger.record
    helped = SPENT_BY_HELPERS if transport.placement.helpers else ()
    spent = {name: getattr(record, name) for name in (*SPENT, *helped)}
    # One sum of all: each takes a turn of every rank.
    mine = np.concatenate([values.ravel() for values in spent.values()], dtype=np.float64)
    total = transport.sum_to_server(mine)
    if total is not None:
        bounds = np.cumsum([values.size for values in spent.values()])[:-1]
        for (name, values), sums in zip(spent.items(), np.split(total, bounds), strict=True):
            setattr(record, name, sums.reshape(values.shape).astype(values.dtype))
    record.round_seconds = elapsed
    _enter_ranks(record, transport, start, round_.stretches, (resident, peak))
    return record


def _enter_ranks(
    record: RoundRecord,
    transport: Transport,
    began: float,
    stretches: Sequence[Stretch],
    memory: tuple[float, float],
) -> None:
    """Enter the times and the memory of all ranks into the server's record; every rank calls this.

    `began` is the time at which the rank left the barrier before the round. `memory` is its
    resident memory then and its peak in the round, in bytes. The record has the elapsed time of the
    rank. All ranks have the same number of stretches, with the same calls.
    """
    ranks, offset = transport.placement.ranks, transport.clock_offset_seconds
    count = transport.calls.number if not stretches else stretches[-1].calls.stop
    mine = [began + offset, offset, transport.clock_uncertainty_seconds, *memory]
    mine.append(record.round_seconds)
    mine += [time + offset for each in stretches for time in (each.begin, each.end)]
    everybodys = transport.collect(np.array(mine))
    all_calls = transport.collect(transport.calls.table(count, offset))
    if everybodys is None or all_calls is None:
        return
    # The row of a dead rank is all zeros.
    alive = everybodys[:, 0] > 0
    starts = everybodys[alive, 0]
    record.round_seconds = float(everybodys[alive, 5].max())
    record.skew_seconds = float(starts.max() - starts.min())
    record.clock_offset_seconds = np.where(alive, everybodys[:, 1], np.nan)
    record.clock_uncertainty_seconds = float(everybodys[alive, 2].max())
    record.resident_bytes, record.peak_bytes = np.where(alive, everybodys[:, 3:5].T, np.nan)
    in_mpi, waited = calls.split(all_calls)
    shape = (len(record.bytes_up), ranks)
    sums = {name: np.zeros(shape) for name in ("elapsed", "mpi_seconds", "waiting_seconds")}
    first, last = np.full(shape, np.inf), np.full(shape, -np.inf)
    for index, each in enumerate(stretches):
        begin, end = everybodys[:, 6 + 2 * index : 8 + 2 * index].T - starts.min()
        phase, numbers = each.phase, slice(each.calls.start, each.calls.stop)
        first[phase], last[phase] = np.minimum(first[phase], begin), np.maximum(last[phase], end)
        sums["elapsed"][phase] += end - begin
        sums["mpi_seconds"][phase] += in_mpi[:, numbers].sum(axis=1)
        sums["waiting_seconds"][phase] += waited[:, numbers].sum(axis=1)
    elapsed = sums.pop("elapsed")
    sums["computing_seconds"] = elapsed - sums["mpi_seconds"] - sums["waiting_seconds"]
    known = np.isfinite(first) & alive
    for name, values in (*sums.items(), ("begin_seconds", first), ("end_seconds", last)):
        # Clock offsets have an error of microseconds, so times may come out slightly below 0.
        setattr(record, name, np.where(known, np.maximum(values, 0), np.nan))
