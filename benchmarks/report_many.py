"""The time of `hpcfl report` over a thousand results files, and of `import hpcfl.results`.

    python benchmarks/report_many.py [FILES]

Times are elapsed seconds of whole processes, with Python's start; the best of three counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from harness import figure
from hpcfl.results.record import RoundRecord
from hpcfl.results.writer import ResultsWriter

FILES = 1000
PHASES = ("model", "advertise_keys", "share_keys", "masked_input", "unmask", "result")
PROTOCOLS = ("fedavg", "secagg", "sparse", "cohort")
DEVICES, ROUNDS = 20, 12
REPEATS = 3
LIMITS = {"report": 10.0, "import": 0.3}


def write(path: Path, number: int) -> None:
    """Write a run of 10 measured rounds; each number gives a different configuration."""
    rng = np.random.default_rng(number)
    with ResultsWriter(
        path,
        protocol=PROTOCOLS[number % len(PROTOCOLS)],
        command="hpcfl bench",
        config={"dim": 1000 + number, "alpha": 0.1, "dropout": 0.3, "uplink_mbps": 100.0},
        environment={f"fact_{k}": f"value {k}" for k in range(45)} | {"transport": "mpi"},
        phases=PHASES,
        devices=DEVICES,
        rounds=ROUNDS,
    ) as writer:
        for index in range(ROUNDS):
            record = RoundRecord.empty(len(PHASES), DEVICES)
            record.bytes_up[:] = record.bytes_down[:] = rng.integers(1, 10**6, (6, DEVICES))
            record.messages_up[:] = record.messages_down[:] = 1
            record.cpu_seconds[:] = rng.random((6, DEVICES + 1))
            record.wall_seconds[:] = rng.random((6, DEVICES + 1))
            record.round_seconds = float(rng.random())
            record.survived[:] = record.validated = True
            record.warmup = index < 2
            writer.append(record)


def seconds(*arguments: object) -> float:
    """Return the shortest elapsed time of a few runs of Python with these arguments."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        line = [sys.executable, *map(str, arguments)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Write the files, measure and print."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            write(Path(folder) / f"{number:05}.h5", number)
        for form in ("terminal", "csv"):
            elapsed = seconds("-m", "hpcfl", "report", folder, "--format", form)
            name = f"hpcfl report --format {form}, {files} files"
            figure(name, elapsed, LIMITS["report"], " s")
    figure("import hpcfl.results", seconds("-c", "import hpcfl.results"), LIMITS["import"], " s")
    loading = seconds("-c", "import hpcfl.results; hpcfl.results.load")
    figure("hpcfl.results.load found as well: NumPy and h5py", loading, 1.0, " s")


if __name__ == "__main__":
    main()
