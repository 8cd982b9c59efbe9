"""The main job as a user starts it: ``mpirun -n 101 hpcfl bench sparse`` with its defaults.

Measures its elapsed time, the largest resident memory of a device rank, and the time of
``hpcfl --help``. Measures its CPU time beside that of 101 ranks that only start, and beside that of
the same devices on 3 ranks. Run it in the activated environment, on an idle machine. Takes about
two minutes on 2 cores.
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

import hpcfl
from harness import figure

RANKS, FEWER = 101, 3
START = (sys.executable, "-c", "import numpy; from mpi4py import MPI")


def resident_peak_mb(pid: int) -> float:
    """Return the largest resident set of a process so far, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the pid of each rank that a launcher started on this host, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) != launcher:
                continue
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(variable.partition(b"=")[2])] = int(folder.name)
    return found


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
        command = ["mpirun", "-n", str(ranks), "hpcfl", "bench", "sparse"]
        command += ["--devices", str(RANKS - 1), "--output", folder]
        before, start = children_cpu_seconds(), time.perf_counter()
        job = subprocess.Popen(command)
        peak = 0.0
        while job.poll() is None:
            time.sleep(1)
            for rank, pid in ranks_of(job.pid).items():
                try:
                    peak = max(peak, resident_peak_mb(pid) if rank else 0.0)
                except OSError:
                    continue
        elapsed = time.perf_counter() - start
    if job.returncode:
        raise SystemExit(f"the job failed with status {job.returncode}")
    return elapsed, children_cpu_seconds() - before, peak


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
    start = start_cpu_seconds()
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
