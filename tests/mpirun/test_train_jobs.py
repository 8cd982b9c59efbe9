import os
import signal
import time

import numpy as np
import pytest
from launcher import MPIRUN, assert_refused, finish, hpcfl, needs_mpirun, pid_of_rank, start

from hpcfl.results import load
from hpcfl.system.interruption import LEFT_STATUS

pytest.importorskip("torch")
pytestmark = needs_mpirun

TRAIN = ("fedavg", "--epochs", 1, "--learning-rate", 0.1)


def model_after(file, ranks, *options):
    """Train, and return the model of the last checkpoint."""
    file.parent.mkdir(exist_ok=True)
    job = hpcfl(ranks, "train", *options, "--output", file)

    assert job.returncode == 0, job.stderr
    assert load(file).environment["ranks"] == ranks
    assert load(file).environment["host_ranks"] == [ranks]
    return np.load(file.with_suffix(".checkpoint.npz"))["weights"].tolist()


def wait_for_checkpoint(job, checkpoint):
    deadline = time.monotonic() + 120
    while not checkpoint.exists():
        assert time.monotonic() < deadline, "no checkpoint was written in time"
        assert job.poll() is None, job.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize(
    "options",
    [
        ("fedavg", "--per-round", 2, *TRAIN[1:]),
        ("fedavg", "--aggregate", "sparse", "--per-round", 2, *TRAIN[1:]),
        ("fedavg", "--aggregate", "prf", *TRAIN[1:]),
        # With noise that is not secret.
        ("cdp", "--aggregate", "secagg", "--steps", 2, "--sigma", 0.01),
        ("dp-fedavg", "--sampling", "poisson", "--per-round", 2, "--noise-multiplier", 0.1),
        ("locks", "--variant", "local", "--per-round", 2, "--noise-multiplier", 0.1),
    ],
    ids=lambda options: "-".join(map(str, options[:3])),
)
def test_the_model_does_not_depend_on_the_number_of_ranks(tmp_path, options):
    options += ("--devices", 3, "--rounds", 2, "--checkpoint-every", 2, "--dropout", 0)
    one, *others = (
        model_after(tmp_path / f"{ranks}.h5", ranks, *options, "--insecure-seed", 1)
        for ranks in (1, 2, 4)
    )

    assert others == [one, one]


def test_the_overlap_of_devices_on_several_ranks_is_that_of_all(tmp_path):
    overlaps = []
    for ranks in (2, 4):
        file = tmp_path / f"{ranks}.h5"
        options = ("--devices", 6, "--rounds", 2, "--epochs", 1)
        job = hpcfl(ranks, "train", "top-k", *options, "--output", file)
        assert job.returncode == 0, job.stderr
        overlaps.append(load(file).training["overlap"].tolist())

    np.testing.assert_equal(overlaps[0], overlaps[1])
    assert 0.1 < overlaps[0][0] < 1


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_model_of_an_undisturbed_one(tmp_path):
    options = ("--aggregate", "secagg", "--devices", 4, "--dropout", 0.25)
    killed = tmp_path / "killed.h5"
    checkpoint = killed.with_suffix(".checkpoint.npz")
    job = start(
        *(*MPIRUN, 3, "hpcfl", "train", *TRAIN, "--rounds", 10_000),
        *("--checkpoint-every", 3, "--output", killed, *options),
    )
    wait_for_checkpoint(job, checkpoint)
    os.kill(pid_of_rank(job.pid, 0), signal.SIGKILL)
    assert finish(job, 60).returncode != 0
    reached = int(np.load(checkpoint)["next_round"])
    rounds = ("--rounds", reached + 2)
    resumed = model_after(
        *(tmp_path / "resumed.h5", 3, *TRAIN, *options, *rounds),
        *("--checkpoint-every", 1, "--resume", checkpoint),
    )
    whole = (*TRAIN, *options, *rounds, "--checkpoint-every", reached + 2)

    assert resumed == model_after(tmp_path / "whole.h5", 3, *whole)
    assert load(killed).rounds >= reached
    assert load(tmp_path / "resumed.h5").rounds == 2


@pytest.mark.full
def test_all_ranks_leave_together_when_mpirun_gets_the_signal(tmp_path):
    results = tmp_path / "run.h5"
    checkpoint = results.with_suffix(".checkpoint.npz")
    options = ("--devices", 2, "--rounds", 2000, "--checkpoint-every", 2, "--output", results)
    job = start(*MPIRUN, 4, "hpcfl", "train", *TRAIN, *options)
    wait_for_checkpoint(job, checkpoint)
    os.kill(job.pid, signal.SIGUSR1)
    ended = finish(job, 120)

    assert ended.returncode == LEFT_STATUS, ended.stderr
    assert ended.stderr.count("Error: ") == 1
    assert "[rank" not in ended.stderr
    # The last checkpoint is of the last round, whichever it was.
    assert int(np.load(checkpoint)["next_round"]) == load(results).rounds


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--dataset", "mnist", "--data-dir", "/nowhere"], "hpcfl data fetch mnist"),
        (["--partition", "nonsense"], "nonsense"),
        (["--resume", "/nowhere.npz"], "cannot be read as a checkpoint"),
        (["--model", "nonsense"], "nonsense"),
    ],
)
def test_wrong_use_of_train_is_refused_once_with_a_sentence(options, sentence, tmp_path):
    assert_refused(hpcfl(3, "train", *TRAIN, "--output", tmp_path, *options), sentence)
