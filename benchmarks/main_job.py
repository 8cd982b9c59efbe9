"""The main job as a user starts it: ``mpirun -n 101 hpcfl bench sparse`` with its defaults.

Measures its elapsed time, the largest resident memory of a device rank, and the time of
``hpcfl --help``. Run it in the activated environment. Takes about a minute on 2 cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from harness import figure

RANKS = 101


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


def main_job() -> tuple[float, float]:
    """Return the elapsed seconds, and the largest resident memory of a device rank in MB."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-n", str(RANKS), "hpcfl", "bench", "sparse", "--output", folder]
        start = time.perf_counter()
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
    return elapsed, peak


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
    elapsed, peak = main_job()
    figure(f"mpirun -n {RANKS} hpcfl bench sparse on {os.cpu_count()} cores", elapsed, 45, " s")
    figure("largest resident memory of a device rank", peak, 80, " MB")


if __name__ == "__main__":
    main()
