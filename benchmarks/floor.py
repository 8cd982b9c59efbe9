"""A round of `fedavg` in one process against bare loops that do its arithmetic.

    python benchmarks/floor.py [--devices N] [--dim D] [--rounds K]

The first loop copies the model and adds the vectors up. The second also weights every vector and
copies it into a message, once, as a device must that sends it. What a round takes beyond that are
checks that all values are finite, on both sides, the search for zeros, envelopes and the ledger.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import hpcfl


def seconds(loop: Callable[[], None], repeats: int) -> float:
    """Return the median seconds of a call."""
    samples = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        loop()
        samples.append(time.perf_counter() - start)
    return median(samples[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--dim", type=int, default=165_000)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    vectors = [generator.standard_normal(given.dim, np.float32) for _ in range(given.devices)]
    model = np.zeros(given.dim, np.float32)
    weight = np.float32(1 / given.devices)

    def bare() -> None:
        model.copy()
        total = np.zeros(given.dim)
        for vector in vectors:
            total += vector

    def serialised() -> None:
        model.copy()
        total = np.zeros(given.dim)
        for vector in vectors:
            total += np.frombuffer((vector * weight).tobytes(), np.float32)

    size = {"devices": given.devices, "dim": given.dim, "rounds": given.rounds, "dropout": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        run = hpcfl.bench("fedavg", **size, output=Path(folder) / "run.h5")
        assert run is not None
        played = float(np.median(run.round_seconds[run.measured]))
    print(f"round {1e3 * played:.2f} ms")
    for name, loop in (("sum", bare), ("weighted, serialised, sum", serialised)):
        found = seconds(loop, given.rounds)
        print(f"{name} {1e3 * found:.2f} ms: the round takes {played / found:.2f} times as long")


if __name__ == "__main__":
    main()
