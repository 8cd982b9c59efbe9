"""The peak memory of ranks in a round.

python benchmarks/memory.py            several protocols, four minutes
python benchmarks/memory.py --large    d = 50,000,000 on one process and on 5 ranks; 5 GB, 3 minutes

A vector has 4 d bytes. Peaks in vectors exclude the memory of an interpreter with MPI.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import figure, launched
from hpcfl.results.reader import Run

# The memory of an interpreter with MPI, numpy and the cipher.
START_BYTES = 70_000_000
# Protocol, ranks, devices, coordinates, and other options.
CASES: tuple[tuple[str, int, int, int, dict[str, Any]], ...] = (
    ("fedavg", 1, 100, 1_663_370, {}),
    ("secagg", 1, 100, 1_663_370, {}),
    ("secagg", 1, 10, 5_000_000, {"bits": "16"}),
    ("secagg", 1, 4, 10_000_000, {"bits": "12"}),
    ("common", 1, 25, 5_000_000, {}),
    ("sparse", 1, 10, 5_000_000, {}),
    ("cohort", 1, 25, 5_000_000, {}),
    ("lightsecagg", 1, 4, 10_000_000, {}),
    ("secagg", 3, 10, 20_000_000, {}),
    ("fedavg", 3, 10, 5_000_000, {}),
    ("cohort", 3, 25, 5_000_000, {}),
)


def typed(options: dict[str, Any]) -> list[str]:
    """Return options as words of the command line."""
    words = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def played(protocol: str, ranks: int, devices: int, dim: int, more: dict[str, Any]) -> Run:
    """Run a job and return its results."""
    launch = ["mpirun", "-n", ranks, "--oversubscribe"] if ranks > 1 else []
    command = [*launch, sys.executable, "-m", "hpcfl", "bench", protocol, *typed(more)]
    return launched(*command, "--devices", devices, "--dim", dim)


def peaks(run: Run) -> tuple[float, float]:
    """Return the peaks of the server's rank and of the largest other one; 0 if there is none."""
    return float(run.peak_bytes[:, 0].max()), float(run.peak_bytes[:, 1:].max(initial=0))


def compare() -> None:
    print(f"protocol    ranks    N         d  {'options':<24} server, MB  device, MB")
    for protocol, ranks, devices, dim, more in CASES:
        run = played(protocol, ranks, devices, dim, more | {"rounds": 1, "warmup": 1})
        server, device = peaks(run)
        print(
            f"{protocol:<11} {ranks:5} {devices:4} {dim:9}  {' '.join(typed(more)):<24} "
            f"{server / 1e6:10.0f}  {device / 1e6:10.0f}"
        )


def large() -> None:
    vector = 4 * 50_000_000
    rounds = {"rounds": 2, "warmup": 0}
    server, _ = peaks(played("secagg", 1, 4, 50_000_000, rounds))
    figure("one process, d = 50,000,000, N = 4: vectors", (server - START_BYTES) / vector, 5)
    server, device = peaks(played("secagg", 5, 4, 50_000_000, rounds))
    figure("5 ranks, the server's: vectors", (server - START_BYTES) / vector, 3)
    figure("5 ranks, a device's: vectors", (device - START_BYTES) / vector, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--large", action="store_true")
    if parser.parse_args().large:
        large()
    else:
        compare()


if __name__ == "__main__":
    main()
