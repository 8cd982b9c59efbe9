"""A run keeps nothing from round to round: memory and descriptors of a short one, in one process.

benchmarks/long_run.py looks at the ranks of a long one from outside.
"""

import gc
import os
import tracemalloc

import numpy as np
import pytest

import hpcfl

ROUNDS = 150
SETTLED = 50
EVERY = 10
LIMIT_BYTES = 1000.0  # a round


@pytest.mark.full
def test_memory_and_descriptors_stay_flat(tmp_path):
    played, memory, opened = [], [], []

    def progress(index, result):
        played.append(True)
        if len(played) % EVERY == 0:
            gc.collect()
            memory.append(tracemalloc.get_traced_memory()[0])
            opened.append(len(os.listdir("/proc/self/fd")))

    size = {"devices": 5, "dim": 50, "rounds": ROUNDS, "warmup": 0, "dropout": 0.3}
    tracemalloc.start()
    try:
        run = hpcfl.bench("sparse", **size, output=tmp_path / "run.h5", progress=progress)
    finally:
        tracemalloc.stop()
    settled = memory[SETTLED // EVERY :]
    slope = np.polyfit(np.arange(len(settled)) * EVERY, settled, 1)[0]

    assert len(played) == run.rounds == ROUNDS
    assert run.validated.all()
    assert slope < LIMIT_BYTES
    assert opened[0] == opened[-1]
