"""A training whose round does not end in time after a signal: the round before is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcfl.results import load
from hpcfl.system.interruption import LEFT_STATUS

pytest.importorskip("torch")

# Trains, and from some round on sleeps inside C, where Python runs no signal handlers.
PROGRAM = """
import ctypes, sys
from pathlib import Path
import numpy as np
from hpcfl.system import interruption
from hpcfl.bench.experiment import Options
from hpcfl.comm.world import World
from hpcfl.learning.training import LocalOptions
from hpcfl.rounds.observer import RoundObserver
from hpcfl.train import session
from hpcfl.train.experiment import TrainOptions

folder, stuck_after, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
interruption.DEADLINE_SECONDS = 0.3
asked = TrainOptions(
    "fedavg",
    Options("fedavg", warmup=0, rounds=4, dropout=0.0),
    LocalOptions(epochs=1, batch_size=20, learning_rate=0.1),
    resume=Path(resume) if resume else None,
)

class Stuck(RoundObserver):
    def finished(self, index, result):
        if index + 1 == stuck_after:
            print("stuck", flush=True)
            while True:
                ctypes.CDLL(None).pause()

trained = session.run(World(None), asked, 4, folder / "run.h5", Stuck())
np.save(folder / "model.npy", trained.weights)
"""


def start(folder: Path, stuck_after: int = 0, resume: str = "") -> subprocess.Popen[str]:
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(stuck_after), resume],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_round_before_is_kept(tmp_path: Path) -> None:
    job = start(tmp_path / "stuck", stuck_after=2)
    assert job.stdout is not None
    assert job.stdout.readline() == "stuck\n"
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=30)
    run = load(tmp_path / "stuck" / "run.h5")
    checkpoint = tmp_path / "stuck" / "run.checkpoint.npz"

    assert job.returncode == LEFT_STATUS, err
    assert f"after 2 rounds; go on with --resume {checkpoint}" in err
    assert (run.status, run.rounds) == ("interrupted", 2)
    with np.load(checkpoint) as state:
        assert (int(state["next_round"]), int(state["at_risk"])) == (2, 1)
    for folder, resume in (("resumed", str(checkpoint)), ("whole", "")):
        assert start(tmp_path / folder, resume=resume).wait(timeout=60) == 0
    np.testing.assert_array_equal(
        np.load(tmp_path / "resumed" / "model.npy"), np.load(tmp_path / "whole" / "model.npy")
    )
