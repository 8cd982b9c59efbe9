"""What ranks hold at the peak of a round, beside what `hpcfl predict` says.

python benchmarks/memory.py            several protocols, two minutes
python benchmarks/memory.py --large    d = 50,000,000 on one process and on 5 ranks; 5 GB, 3 minutes
python benchmarks/memory.py --huge     d = 1,000,000,000 in one process; 13 GB, 4 minutes

A vector is 4 d bytes. Peaks in vectors are above what an interpreter with MPI takes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import figure
from hpcfl.options.bench import BenchOptions
from hpcfl.results.reader import Run, load
from hpcfl.rounds.build import build
from hpcfl.rounds.memory import START_BYTES, predict_memory

# Protocol, ranks, devices, coordinates, and other options.
CASES: tuple[tuple[str, int, int, int, tuple[str, ...]], ...] = (
    ("fedavg", 1, 100, 1_663_370, ()),
    ("secagg", 1, 100, 1_663_370, ()),
    ("secagg", 1, 10, 5_000_000, ("--bits", "16")),
    ("secagg", 1, 10, 5_000_000, ("--bits", "20")),
    ("common", 1, 25, 5_000_000, ()),
    ("sparse", 1, 10, 5_000_000, ()),
    ("cohort", 1, 25, 5_000_000, ()),
    ("secagg", 3, 10, 5_000_000, ()),
    ("secagg", 3, 10, 20_000_000, ()),
    ("fedavg", 3, 10, 5_000_000, ()),
    ("cohort", 3, 25, 5_000_000, ()),
)


def played(protocol: str, ranks: int, devices: int, dim: int, more: tuple[str, ...]) -> Run:
    """Run a job and return its results."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        launch = ["mpirun", "-n", str(ranks), "--oversubscribe"] if ranks > 1 else []
        command = [
            *(*launch, sys.executable, "-m", "hpcfl", "bench", protocol),
            *("--devices", str(devices), "--dim", str(dim), "--output", str(path), *more),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return load(path)


def peaks(run: Run) -> tuple[float, float]:
    """Return the peaks of the server's rank and of the largest other one; 0 if there is none."""
    assert run.peak_bytes is not None
    return float(run.peak_bytes[:, 0].max()), float(run.peak_bytes[:, 1:].max(initial=0))


def compare() -> None:
    print(f"{'':<34} {'MB of the server':>28} {'MB of a device':>29}")
    print(f"protocol  ranks    N         d  options {'here':>18} predicted {'here':>19} predicted")
    for protocol, ranks, devices, dim, more in CASES:
        run = played(protocol, ranks, devices, dim, (*more, "--rounds", "1", "--warmup", "1"))
        options = BenchOptions(protocol=protocol, bits=more[1] if more else None)
        found = predict_memory(build(protocol, options, devices, dim)[0], ranks)
        server, device = peaks(run)
        told = f"{device / 1e6:19.0f} {found.device / 1e6:9.0f}" if found.device else ""
        print(
            f"{protocol:<9} {ranks:5} {devices:4} {dim:9}  {' '.join(more):<11} "
            f"{server / 1e6:17.0f} {found.server / 1e6:9.0f} {told}"
        )


def large() -> None:
    vector = 4 * 50_000_000
    rounds = ("--rounds", "2", "--warmup", "0")
    server, _ = peaks(played("secagg", 1, 4, 50_000_000, rounds))
    figure("one process, d = 50,000,000, N = 4: vectors", (server - START_BYTES) / vector, 5)
    server, device = peaks(played("secagg", 5, 4, 50_000_000, rounds))
    figure("5 ranks, the server's: vectors", (server - START_BYTES) / vector, 3)
    figure("5 ranks, a device's: vectors", (device - START_BYTES) / vector, 3)


def huge() -> None:
    options = ("--rounds", "1", "--warmup", "0", "--dropout", "0")
    run = played("secagg", 1, 3, 1_000_000_000, options)
    figure("one process, d = 1,000,000,000, N = 3: GB", peaks(run)[0] / 1e9, 22)
    print("validated:", bool(run.validated.all()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--huge", action="store_true")
    given = parser.parse_args()
    if given.large:
        large()
    if given.huge:
        huge()
    if not given.large and not given.huge:
        compare()


if __name__ == "__main__":
    main()
