"""Writes the golden file of this version's schema: `python tests/results/golden.py FILE`.

The files in git are never written again: they are what older releases have left behind. A new
version of the schema gets a new one.
"""

import math
import sys
from pathlib import Path

import numpy as np

from hpcfl.results.record import RoundRecord
from hpcfl.results.writer import ResultsWriter

PHASES = ("model", "masked_input")
ROUNDS = 2


def record(index):
    """Return round 0 or 1 of three devices, all of whose figures are different numbers."""
    traffic = np.arange(6, dtype=np.uint64).reshape(2, 3) + np.uint64(100 * index)
    seconds = np.arange(8).reshape(2, 4) / 8 + index
    return RoundRecord(
        bytes_up=traffic + np.uint64(2**40),
        bytes_down=traffic + np.uint64(20),
        messages_up=traffic + np.uint64(30),
        messages_down=traffic + np.uint64(40),
        wall_seconds=seconds + 10,
        cpu_seconds=seconds + 20,
        round_seconds=0.5 + index,
        survived=np.array([True, index == 0, False]),
        validated=True,
        warmup=index == 0,
    )


def write(path):
    """Write a run that was planned for three rounds and ended after two."""
    with ResultsWriter(
        path,
        protocol="secagg",
        command="hpcfl train fedavg --aggregate secagg",
        config={"dim": 7, "alpha": 0.1, "preset": None, "convex": True, "promises": ["nothing"]},
        environment={"transport": "loopback", "ranks": 1, "mpi_library": None},
        at_end={"stop_reason": "", "after_load_1min": math.nan},
        phases=PHASES,
        devices=3,
        rounds=ROUNDS + 1,
        training=("accuracy", "epsilon_proven"),
        partition=[[1, 2], [3, 4], [5, 6]],
    ) as writer:
        for index in range(ROUNDS):
            figures = {"accuracy": 0.25 + index / 2, "epsilon_proven": np.inf if index else 1.5}
            writer.append(record(index), figures)
        writer.record_end({"stop_reason": "max_seconds", "after_load_1min": 1.25})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
