"""Memory, descriptors and file of a long run of hpcfl bench under mpirun, observed from outside.

python benchmarks/long_run.py                          17 ranks, 2,000 rounds; one device per rank
python benchmarks/long_run.py --ranks 3 --rounds 500   the same 16 devices on two ranks
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import psutil
from scipy.stats import linregress

from harness import figure
from hpcfl.results import load
from hpcfl.results.record import KNOWN

LIMIT_BYTES = 1000.0  # per round and rank
SAMPLE_SECONDS = 0.2
# Buffers, caches and connections grow in the first rounds.
SETTLED_SHARE = 0.1
RANK = "OMPI_COMM_WORLD_RANK"


def ranks_of(launcher: int) -> dict[int, psutil.Process]:
    """Return the process of each rank that a launcher has started on this host."""
    found = {}
    with suppress(psutil.Error):
        for process in psutil.Process(launcher).children():
            if RANK in process.environ():
                found[int(process.environ()[RANK])] = process
    return found


def finished_rounds(path: Path) -> int:
    """Return the number of finished rounds, without reading their data."""
    with h5py.File(path, "r", locking=False) as file:
        return int(file["rounds/finished"][()].sum())


def watch(command: list[str], path: Path, ranks: int) -> tuple[list[list[list[int]]], int]:
    """Run a command to its end.

    Return the samples of each rank, with finished rounds, resident bytes and descriptors, and the
    initial size of the file.
    """
    with tempfile.TemporaryFile("w+") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        processes: dict[int, psutil.Process] = {}
        seen: list[list[list[int]]] = [[] for _ in range(ranks)]
        size = 0
        while job.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            if not path.exists():
                continue
            if len(processes) < ranks:
                processes, size = ranks_of(job.pid), path.stat().st_size
                continue
            finished = finished_rounds(path)
            with suppress(psutil.Error):  # the run has ended
                for rank, process in processes.items():
                    resident = process.memory_info().rss
                    seen[rank].append([finished, resident, process.num_fds()])
        if job.returncode != 0:
            output.seek(0)
            sys.exit(f"the run failed with status {job.returncode}:\n{output.read()}")
    return seen, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=17)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        command = [
            *("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
            *("-n", str(asked.ranks), "hpcfl", "bench", "sparse", "--devices", "16"),
            *("--dim", "1000", "--warmup", "0", "--dropout", "0.3"),
            *("--rounds", str(asked.rounds), "--output", str(path)),
        ]
        seen, size = watch(command, path, asked.ranks)
        run = load(path)
    print("\nrank  samples  resident, MB: first  last   slope, B a round  +-  descriptors")
    worst, leaked = 0.0, 0
    for rank, samples in enumerate(seen):
        rows = np.array(samples)
        # Samples after the last round are left out: the summary is made then.
        rows = rows[(rows[:, 0] >= SETTLED_SHARE * asked.rounds) & (rows[:, 0] < asked.rounds)]
        line = linregress(rows[:, 0], rows[:, 1])
        first, last = rows[0], rows[-1]
        worst, leaked = max(worst, line.slope), max(leaked, int(last[2] - first[2]))
        print(
            f"{rank:4}  {len(rows):7}  {first[1] / 1e6:19.2f}  {last[1] / 1e6:6.2f}"
            f"  {line.slope:16.1f}  {line.stderr:.1f}  {first[2]} {last[2]}"
        )
    print()
    figure("memory of a rank, bytes a round, the largest slope", worst, LIMIT_BYTES, " B")
    figure("descriptors of a rank, last - first", leaked, 0)
    held = sum(getattr(run, one.name).nbytes for one in KNOWN if getattr(run, one.name) is not None)
    figure(f"file of {size} bytes / what it holds", size / held, 2)
    figure("rounds that are missing or not valid", asked.rounds - int(run.validated.sum()), 0)


if __name__ == "__main__":
    main()
