"""Times a round on every rank, and adds up over the ranks what it cost."""

from __future__ import annotations

import math
import time

from hpcfl.comm.transport import Transport
from hpcfl.results.record import SPENT, SPENT_BY_HELPERS, RoundRecord
from hpcfl.rounds import ranktimes
from hpcfl.rounds.driver import Round
from hpcfl.system import machine


def timed(transport: Transport, round_: Round) -> RoundRecord:
    """Play a round by the clock, which all ranks start at once; every rank calls this.

    Returns at the server what all ranks spent, and the slowest one's elapsed time; elsewhere what
    this rank spent. Making vectors (`Round.prepare_seconds`) is not in it.
    """
    anew = machine.forget_peak()
    resident, _ = machine.resident_bytes()
    transport.barrier()
    transport.calls.restart()
    start = time.perf_counter()
    round_.play()
    elapsed = time.perf_counter() - start - round_.prepare_seconds
    # A peak that could not begin anew may be that of an earlier round.
    peak = machine.resident_bytes()[1] if anew else math.nan
    record = round_.ledger.record
    helped = SPENT_BY_HELPERS if transport.placement.helpers else ()
    for name in (*SPENT, *helped):
        total = transport.sum_to_server(getattr(record, name))
        if total is not None:
            setattr(record, name, total)
    longest = transport.max_to_server(elapsed)
    record.round_seconds = elapsed if longest is None else longest
    ranktimes.enter(record, transport, start, round_.stretches, (resident, peak))
    return record
