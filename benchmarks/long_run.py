"""Memory, descriptors and file of a long run: hpcfl bench under mpirun, looked at from outside.

python benchmarks/long_run.py                          17 ranks, a device each, 2,000 rounds
python benchmarks/long_run.py --ranks 3 --rounds 500   the same 16 devices on two ranks

Memory is what /proc says is resident, of which the anonymous part is what a process has allocated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from harness import figure
from hpcfl.results import load
from hpcfl.results.writer import predicted_bytes

LIMIT_BYTES = 1000.0  # a round a rank
SAMPLE_SECONDS = 0.2
# Buffers, caches and connections are built up in the first rounds.
SETTLED_SHARE = 0.1


@dataclass
class Samples:
    """What was seen of a rank: rounds finished, resident and anonymous bytes, descriptors."""

    process: int
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)

    def take(self, finished: int) -> None:
        """Look at the process, unless it has ended."""
        folder = Path(f"/proc/{self.process}")
        try:
            lines = (folder / "status").read_text().splitlines()
            descriptors = len(os.listdir(folder / "fd"))
        except OSError:
            return
        words = dict(line.split(":", 1) for line in lines if ":" in line)
        if "VmRSS" not in words:
            return
        resident, anonymous = (1024 * int(words[name].split()[0]) for name in ("VmRSS", "RssAnon"))
        self.rows.append((finished, resident, anonymous, descriptors))

    def settled(self, rounds: int) -> NDArray[np.int64]:
        """Return the rows from the first tenth of the rounds to the last, int64 (samples, 4).

        After the last the summary is made, which is not a round.
        """
        rows = np.array(self.rows, np.int64).reshape(-1, 4)
        return rows[(rows[:, 0] >= SETTLED_SHARE * rounds) & (rows[:, 0] < rounds)]


def slope(x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[float, float]:
    """Return the slope of the least-squares line and its standard error, errors independent."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    found = float(centred @ (y - y.mean())) / spread
    residuals = y - y.mean() - found * centred
    return found, float(np.sqrt(residuals @ residuals / max(1, len(x) - 2) / spread))


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the process of each rank that a launcher has started on this host."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = dict(
                part.split(b"=", 1)
                for part in (folder / "environ").read_bytes().split(b"\0")
                if b"=" in part
            )
        except OSError:
            continue
        if parent == launcher and b"OMPI_COMM_WORLD_RANK" in variables:
            found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return found


def finished_rounds(path: Path) -> int:
    """Return how many rounds are finished, without reading them."""
    with h5py.File(path, "r", locking=False) as file:
        return int(file["rounds/finished"][()].sum())


def watch(command: list[str], path: Path, ranks: int) -> tuple[list[Samples], int]:
    """Run a command to its end; return what was seen of each rank, and the file's first size."""
    with tempfile.TemporaryFile("w+") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        seen: list[Samples] = []
        size = 0
        while job.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            if not path.exists():
                continue
            if not seen:
                found = ranks_of(job.pid)
                if len(found) < ranks:
                    continue
                seen = [Samples(found[rank]) for rank in range(ranks)]
                size = path.stat().st_size
            finished = finished_rounds(path)
            for samples in seen:
                samples.take(finished)
        if job.returncode != 0:
            output.seek(0)
            sys.exit(f"the run failed with status {job.returncode}:\n{output.read()}")
    return seen, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--dim", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=17)
    parser.add_argument("--protocol", default="sparse")
    parser.add_argument("--dropout", type=float, default=0.3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        start = time.monotonic()
        seen, size = watch(
            [
                *("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
                *("-n", str(asked.ranks), "hpcfl", "bench", asked.protocol),
                *("--devices", str(asked.devices), "--dim", str(asked.dim), "--warmup", "0"),
                *("--rounds", str(asked.rounds), "--dropout", str(asked.dropout)),
                *("--output", str(path)),
            ],
            path,
            asked.ranks,
        )
        seconds = time.monotonic() - start
        run = load(path)
    print(
        f"{asked.protocol}, N = {asked.devices}, d = {asked.dim}, {asked.ranks} ranks: "
        f"{run.rounds} rounds in {seconds:.0f} s"
    )
    print(
        "\nrank  samples  resident, MB: first  last   slope, B a round  +-   anonymous, B  +-  fds"
    )
    worst, leaked = 0.0, 0
    for rank, samples in enumerate(seen):
        rows = samples.settled(asked.rounds)
        all_of_it, error = slope(rows[:, 0], rows[:, 1])
        own, own_error = slope(rows[:, 0], rows[:, 2])
        first, last = rows[0], rows[-1]
        worst, leaked = max(worst, all_of_it), max(leaked, int(last[3] - first[3]))
        print(
            f"{rank:4}  {len(rows):7}  {first[1] / 1e6:19.2f}  {last[1] / 1e6:6.2f}"
            f"  {all_of_it:16.1f}  {error:.1f}  {own:13.1f}  {own_error:.1f}"
            f"  {first[3]} {last[3]}"
        )
    print()
    predicted = predicted_bytes(len(run.phases), run.devices, asked.rounds)
    figure("memory of a rank, bytes a round, the largest slope", worst, LIMIT_BYTES, " B")
    figure("descriptors of a rank, last - first", leaked, 0)
    figure(f"file of {size} bytes / predicted, off by", abs(size / predicted - 1), 0.05)
    figure("rounds that are missing or not valid", asked.rounds - int(run.validated.sum()), 0)


if __name__ == "__main__":
    main()
