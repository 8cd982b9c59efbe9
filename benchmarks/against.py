"""CPU time of whole rounds against that of an earlier version of hpcfl, in alternating launches.

    git worktree add ../hpcfl-27b6567 27b6567
    python benchmarks/against.py ../hpcfl-27b6567

N = 100, d = 165,000; 30 devices drop out before they upload. All devices and the server run in one
process. The ratio is that of the medians over all launches. The interval is the range of the ratios
of neighbouring launches, without the smallest and the largest. With its checks of promises, shares
and rows, a secagg round takes at most 1.03 times the CPU time of commit 27b6567, a cohort round
1.10 times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harness import figure
from hpcfl.results import load

LIMITS = {"secagg": 1.03, "cohort": 1.10}


def seconds(checkout: Path, protocol: str, rounds: int) -> list[float]:
    """Return the CPU seconds of each round with the version in a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        command = [sys.executable, "-m", "hpcfl", "bench", protocol, "--dim", "165000"]
        command += ["--dropout", "0.3", "--rounds", f"{rounds}", "--warmup", "1"]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        command += ["--output", str(path)]
        subprocess.run(command, env=environment, check=True, cwd=folder, capture_output=True)
        run = load(path)
    found: list[float] = run.cpu_seconds[run.measured].sum(axis=(1, 2)).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("earlier", type=Path, help="a checkout of the earlier version")
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent.parent
    for protocol, limit in LIMITS.items():
        before, after = [], []
        for _ in range(arguments.launches):
            before.append(seconds(arguments.earlier.resolve(), protocol, arguments.rounds))
            after.append(seconds(here, protocol, arguments.rounds))
        ratio = float(np.median(after) / np.median(before))
        pairs = np.sort(np.median(after, axis=1) / np.median(before, axis=1))
        figure(f"{protocol} round against {arguments.earlier.name}", ratio, limit)
        print(f"    launch by launch {pairs[1]:.3f} to {pairs[-2]:.3f}; {np.median(after):.3f} s")


if __name__ == "__main__":
    main()
