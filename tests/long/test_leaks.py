"""A run keeps nothing from round to round: memory and descriptors of a short one, in one process.

benchmarks/long_run.py looks at the ranks of a long one from outside.
"""

import gc
import os
import tracemalloc

import numpy as np
import pytest

from hpcfl.benchmark import session
from hpcfl.cli.watching import Spoken
from hpcfl.comm.world import World
from hpcfl.options.bench import BenchOptions
from hpcfl.results import load

ROUNDS = 150
SETTLED = 50
EVERY = 10
LIMIT_BYTES = 1000.0  # a round


@pytest.mark.full
def test_memory_and_descriptors_stay_flat(tmp_path):
    played, memory, opened = [], [], []

    def progress():
        played.append(True)
        if len(played) % EVERY == 0:
            gc.collect()
            memory.append(tracemalloc.get_traced_memory()[0])
            opened.append(len(os.listdir("/proc/self/fd")))

    path = tmp_path / "run.h5"
    options = BenchOptions(
        "sparse", dim=50, rounds=ROUNDS, warmup=0, dropout=0.3, devices=(5,), output=path
    )
    tracemalloc.start()
    try:
        session.run(World(None), options, lambda path: None, Spoken(progress))
    finally:
        tracemalloc.stop()
    run = load(path)
    settled = memory[SETTLED // EVERY :]
    slope = np.polyfit(np.arange(len(settled)) * EVERY, settled, 1)[0]

    assert len(played) == run.rounds == ROUNDS
    assert run.validated.all()
    assert slope < LIMIT_BYTES
    assert opened[0] == opened[-1]
