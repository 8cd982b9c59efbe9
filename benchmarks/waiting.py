"""What a reduction takes with more ranks than cores, where ranks that wait look all the time.

    mpiexec.hydra -n 16 python benchmarks/waiting.py

Compares a call of MPI's own with the same call as `hpcfl.comm.patient` makes it. Of interest with
MPICH; Open MPI and Intel MPI yield.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from hpcfl.comm.patient import Comm, Patient

ELEMENTS = 165_000
CALLS = 5


def median_seconds(comm: Comm) -> float:
    """Return how long rank 0 takes for a reduction that all ranks begin at the same time."""
    mine, total = np.ones(ELEMENTS, np.uint32), np.empty(ELEMENTS, np.uint32)
    seconds = []
    for _ in range(CALLS):
        comm.Barrier()
        start = time.perf_counter()
        comm.Reduce(mine, total if comm.rank == 0 else None, MPI.SUM, root=0)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    patient = median_seconds(Patient(MPI.COMM_WORLD))
    own = median_seconds(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        print(f"{MPI.COMM_WORLD.size} ranks, {MPI.get_vendor()[0]}, a sum of {ELEMENTS} elements:")
        print(f"asleep while waiting {patient:.4f} s, MPI's own {own:.4f} s, {own / patient:.1f} x")


if __name__ == "__main__":
    main()
