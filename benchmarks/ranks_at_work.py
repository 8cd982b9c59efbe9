"""Whether all ranks compute at the same time while devices upload.

    mpirun -n 5 python benchmarks/ranks_at_work.py cohort --devices 812 --dim 330000
    mpirun -n 4 python benchmarks/ranks_at_work.py secagg --devices 3 --dim 34000000

Prints, for the upload of the last round, when each rank had made its first message, as a share of
the phase; the CPU seconds of all ranks, MPI included; and the phase's seconds over what these would
take if all cores were busy all the time. Needs idle cores.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from hpcfl.benchmark.experiment import Experiment
from hpcfl.comm.world import connect
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.driver import AFTER, BEFORE, DURING
from hpcfl.rounds.observer import RoundObserver
from hpcfl.system import machine


class Watch(RoundObserver):
    """Notes the moments of one phase on this rank."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self.moments: dict[str, float] = {}
        self.cpu_seconds = 0.0

    def at(self, index: int, moment: str, phase: str) -> None:
        if phase != self._phase:
            return
        if moment == BEFORE:
            self.moments.clear()
            self.cpu_seconds = -time.process_time()
        self.moments.setdefault(moment, time.perf_counter())
        if moment == AFTER:
            self.cpu_seconds += time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocol")
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    asked = BenchOptions(given.protocol, dim=given.dim, dropout=0.0, rounds=given.rounds, warmup=0)
    world = connect()
    experiment = Experiment.prepare(asked, given.devices)
    transport = world.transport(experiment.devices)
    if transport is None:
        return
    watch = Watch(experiment.protocol.upload_phase())
    experiment.run(transport, watch)
    # Ranks of one host read the same clock.
    table = np.zeros((transport.placement.ranks, 4))
    moments = (watch.moments[name] for name in (BEFORE, DURING, AFTER))
    table[transport.rank] = (*moments, watch.cpu_seconds)
    everybodys = transport.sum_to_server(table)
    if everybodys is None:
        return
    begin, first, end, cpu = everybodys.T
    wall, available = end.max() - begin.min(), machine.usable() or 1
    shares = (first[1:] - begin.min()) / wall
    print(f"{watch._phase}: {wall:.2f} s, CPU of all ranks {cpu.sum():.2f} s")
    print("first message made after", ", ".join(f"{share:.1%}" for share in shares), "of it")
    print(
        f"{wall / (cpu.sum() / available):.2f} times as long as {available} busy cores would take"
    )


if __name__ == "__main__":
    main()
