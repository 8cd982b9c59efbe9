"""The main job as a user starts it: ``mpirun -n 101 hpcfl bench sparse`` with its defaults.

Measures its elapsed time, the largest resident memory of a device rank in a round, and its CPU time
beside that of 101 ranks that only start, and beside that of the same devices on 3 ranks. Also times
``hpcfl --help``. Run it in the activated environment, on an idle machine: two minutes on 2 cores.
"""

from __future__ import annotations

import compileall
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hpcfl
from harness import figure
from hpcfl.results import load

RANKS, FEWER = 101, 3
START = (sys.executable, "-c", "import numpy; from mpi4py import MPI")


def children_cpu_seconds() -> float:
    """Return the CPU seconds of the launchers that have ended so far, and of their ranks."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def start_cpu_seconds() -> float:
    """Return the CPU seconds of as many ranks that only load NumPy and MPI."""
    before = children_cpu_seconds()
    subprocess.run(["mpirun", "-n", str(RANKS), *START], check=True)
    return children_cpu_seconds() - before


def main_job(ranks: int) -> tuple[float, float, float]:
    """Return elapsed and CPU seconds, and the largest resident memory of a device rank in MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        command = ["mpirun", "-n", str(ranks), "hpcfl", "bench", "sparse"]
        command += ["--devices", str(RANKS - 1), "--output", str(path)]
        before, start = children_cpu_seconds(), time.perf_counter()
        subprocess.run(command, check=True)
        elapsed = time.perf_counter() - start
        peaks = load(path).peak_bytes[:, 1:]
    return elapsed, children_cpu_seconds() - before, float(np.nanmax(peaks)) / 1e6


def help_seconds() -> float:
    """Return the median elapsed seconds of ``hpcfl --help``."""
    times = []
    for _ in range(11):
        start = time.perf_counter()
        subprocess.run(["hpcfl", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    figure("hpcfl --help, seconds", help_seconds(), 0.3, " s")
    # An installed package is compiled, a checkout perhaps not.
    compileall.compile_dir(Path(hpcfl.__file__).parent, quiet=1)
    start = min(start_cpu_seconds() for _ in range(2))
    elapsed, cpu, peak = main_job(RANKS)
    fewer_elapsed, fewer_cpu, _ = main_job(FEWER)
    figure(f"mpirun -n {RANKS} hpcfl bench sparse on {os.cpu_count()} cores", elapsed, 45, " s")
    figure("largest resident memory of a device rank", peak, 80, " MB")
    figure(f"CPU time of the job / {RANKS} ranks that only start", cpu / start, 2.6)
    figure(f"CPU time on {FEWER} ranks / {RANKS} ranks", fewer_cpu / cpu, 0.5)
    figure(f"elapsed time on {FEWER} ranks / {RANKS} ranks", fewer_elapsed / elapsed, 0.7)
    print(f"CPU seconds: start {start:.1f}, {RANKS} ranks {cpu:.1f}, {FEWER} ranks {fewer_cpu:.1f}")


if __name__ == "__main__":
    main()
