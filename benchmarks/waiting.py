"""What waiting costs ranks at work with more ranks than cores, where those that wait do not yield.

    mpiexec.hydra -n 16 python benchmarks/waiting.py

All ranks compute, one twice as long as the next, and then reduce: most of the time most of them
wait. Compares a call of MPI's own with the same call as `hpcfl.comm.patient` makes it, and both
with what the cores would take for the work. Of interest with MPICH; Open MPI and Intel MPI yield.
"""

from __future__ import annotations

import os
import time

import numpy as np
from mpi4py import MPI

from hpcfl.comm.patient import Comm, Patient

ELEMENTS = 165_000
LONGEST_WORK_SECONDS = 0.4
CALLS = 5


def median_seconds(comm: Comm) -> float:
    """Return what work and reduction take together, from a barrier on."""
    mine, total = np.ones(ELEMENTS, np.uint32), np.empty(ELEMENTS, np.uint32)
    seconds = []
    for _ in range(CALLS):
        comm.Barrier()
        start = time.perf_counter()
        done = time.thread_time() + work_seconds(comm.rank)
        while time.thread_time() < done:
            np.add(mine, 1, out=mine)
        comm.Reduce(mine, total if comm.rank == 0 else None, MPI.SUM, root=0)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def work_seconds(rank: int) -> float:
    """Return how much CPU time a rank needs before it reduces."""
    return LONGEST_WORK_SECONDS / (rank + 1)


def main() -> None:
    world = MPI.COMM_WORLD
    patient, own = median_seconds(Patient(world)), median_seconds(world)
    if world.rank == 0:
        cores = len(os.sched_getaffinity(0))
        work = [work_seconds(rank) for rank in range(world.size)]
        least = max(LONGEST_WORK_SECONDS, sum(work) / cores)
        library = MPI.get_vendor()[0]
        print(f"{world.size} ranks on {cores} cores, {library}; the work: {least:.3f} s")
        print(f"asleep while waiting {patient:.3f} s, MPI's own call {own:.3f} s")


if __name__ == "__main__":
    main()
