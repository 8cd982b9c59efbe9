"""Training that is told to leave."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcfl.bench.experiment import Options
from hpcfl.comm.world import World
from hpcfl.errors import AgreedError, UsageError
from hpcfl.results import load
from hpcfl.rounds.observer import RoundObserver
from hpcfl.system.interruption import LEFT_STATUS
from hpcfl.train import session
from hpcfl.train.experiment import RoundResult, TrainOptions

pytest.importorskip("torch")

from hpcfl.learning.training import LocalOptions

BIN = Path(sys.executable).parent
LIMIT_SECONDS = 120


def train(
    folder: Path,
    rounds: int = 4,
    number: int | None = None,
    after: int = 2,
    algorithm: str = "fedavg",
    **options: object,
) -> np.ndarray:
    """Train, and send this process a signal in a round; return the model."""
    asked = TrainOptions(
        algorithm,
        Options("fedavg", warmup=0, rounds=rounds),
        LocalOptions(epochs=1, batch_size=20, learning_rate=0.1),
        **options,  # type: ignore[arg-type]
    )

    class Signalled(RoundObserver):
        def finished(self, index: int, result: RoundResult) -> None:
            if number is not None and index + 1 == after:
                os.kill(os.getpid(), number)

    trained = session.run(World(None), asked, 4, folder / "run.h5", Signalled())
    assert trained is not None
    return trained.weights


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_lets_the_round_end_and_leaves_a_checkpoint(
    tmp_path: Path, number: signal.Signals
) -> None:
    for name in ("told", "resumed", "whole"):
        (tmp_path / name).mkdir()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)]
    with pytest.raises(AgreedError, match="after 2 rounds; go on with --resume") as told:
        train(tmp_path / "told", number=number)

    assert told.value.exit_status == LEFT_STATUS == 75
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)] == before
    run = load(tmp_path / "told" / "run.h5")
    assert (run.rounds, run.status) == (2, "interrupted")
    checkpoint = tmp_path / "told" / "run.checkpoint.npz"
    resumed = train(tmp_path / "resumed", resume=checkpoint)
    np.testing.assert_array_equal(resumed, train(tmp_path / "whole"))
    assert load(tmp_path / "resumed" / "run.h5").rounds == 2
    with pytest.raises(UsageError, match="nothing left to train"):
        train(tmp_path, rounds=2, resume=checkpoint)


def test_a_signal_in_the_last_round_is_none(tmp_path: Path) -> None:
    train(tmp_path, rounds=2, number=signal.SIGUSR1)

    assert load(tmp_path / "run.h5").status == "complete"


def test_what_cannot_be_resumed_leaves_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AgreedError, match="nothing can go on") as told:
        train(tmp_path, number=signal.SIGUSR1, algorithm="top-k", error_feedback=True)

    assert told.value.exit_status == 1
    assert not list(tmp_path.glob("*.npz"))


@pytest.mark.full
@pytest.mark.skipif(
    not (BIN / "mpirun").exists() and shutil.which("mpirun") is None,
    reason="no mpirun: install the extra 'mpi' or an MPI of your own",
)
def test_all_ranks_leave_together_when_mpirun_gets_the_signal(tmp_path: Path) -> None:
    results = tmp_path / "run.h5"
    checkpoint = results.with_suffix(".checkpoint.npz")
    job = subprocess.Popen(
        [
            *("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", "4"),
            *("hpcfl", "train", "fedavg", "--devices", "2", "--epochs", "1", "--rounds", "2000"),
            *("--checkpoint-every", "2", "--output", str(results)),
        ],
        env=os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not checkpoint.exists():
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGUSR1)
        _, err = job.communicate(timeout=LIMIT_SECONDS)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    assert job.returncode == 75, err
    assert err.count("Error: ") == 1
    assert "[rank" not in err
    # The last checkpoint is of the last round, whichever it was.
    assert int(np.load(checkpoint)["next_round"]) == load(results).rounds
