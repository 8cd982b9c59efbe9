"""Cells that were interrupted or killed go on behind the rounds that they had finished."""

import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from commandline import hpcfl

import hpcfl as package
from hpcfl.results import load
from hpcfl.results.pooling import group
from hpcfl.results.reader import find
from hpcfl.sweeping import states
from hpcfl.sweeping.manifest import load as load_manifest
from hpcfl.system.interruption import LEFT_STATUS

ROUNDS = 4
BENCH = {"protocol": "secagg", "devices": 4, "dim": 300, "rounds": ROUNDS - 1, "warmup": 1}
TRAIN = {"algorithm": "fedavg", "aggregate": "fedavg", "devices": 4}
TRAIN |= {"rounds": ROUNDS, "epochs": 1, "dropout": 0.3}
PRIVATE = {"algorithm": "cdp", "aggregate": "secagg", "devices": 4, "rounds": ROUNDS, "steps": 2}
PRIVATE |= {"noise-multiplier": 1.0, "dropout": 0.0, "gamma": 0.0}
GRIDS = {"bench": BENCH, "train": TRAIN, "private": PRIVATE}

# A sweep that kills itself: after a round of some number, or before a checkpoint is written.
PROGRAM = """
import json, os, signal, sys
import hpcfl
from hpcfl.training.checkpoint import Checkpoint

grid, folder, after, saves = json.loads(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
save = Checkpoint.save

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def saving(self, path):
    global saves
    saves -= 1
    if saves == 0:
        die()
    save(self, path)

Checkpoint.save = saving
hpcfl.sweep(grid, output=folder, progress=lambda index, result: index == after and die())
"""


@pytest.fixture(autouse=True)
def _no_calibration(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


def killed(grid, folder, after=-1, saves=0):
    """Start a sweep that kills itself."""
    arguments = json.dumps(grid), str(folder), str(after), str(saves)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def progress(folder):
    """Return how far the only cell of a sweep is."""
    (cell,) = load_manifest(folder).cells
    return states.look(folder, cell)


def needs(kind):
    if kind != "bench":
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    if kind == "private":
        pytest.importorskip("scipy")


POINTS = [(kind, after) for kind in GRIDS for after in range(ROUNDS)]


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        one if one[1] in (1, ROUNDS - 1) else pytest.param(*one, marks=pytest.mark.full)
        for one in POINTS
    ],
)
def test_a_cell_that_was_killed_goes_on_behind_its_last_round(tmp_path, kind, after):
    needs(kind)
    grid, folder = GRIDS[kind], tmp_path / "killed"
    killed(grid, folder, after)
    before = progress(folder)
    seen: list[int] = []
    runs = package.sweep(grid, output=folder, progress=lambda index, result: seen.append(index))
    (run,) = runs
    (whole,) = package.sweep(grid, output=tmp_path / "whole")

    assert (before.state, before.rounds) == ("partial", after + 1)
    assert seen == [*range(after + 1, ROUNDS)]
    assert (run.status, run.rounds, bool(run.validated.all())) == ("complete", ROUNDS, True)
    assert (run.bytes_up[: after + 1] == before.run.bytes_up).all()
    np.testing.assert_array_equal(run.survived, whole.survived)
    if kind == "train":
        # Nothing random is lost or drawn twice: it is the training that was never killed.
        for name in ("accuracy", "loss", "bytes_up_total"):
            np.testing.assert_array_equal(run.training[name], whole.training[name])
    if kind == "private" and after < ROUNDS - 1:
        # What may have been played in vain is charged for.
        assert run.training["epsilon_proven"][-1] >= whole.training["epsilon_proven"][-1]
    assert progress(folder).state == "finished"
    assert package.sweep(grid, output=folder, progress=lambda *_: pytest.fail("played again"))


def test_a_training_that_was_killed_at_its_target_plays_no_further_round(tmp_path):
    needs("train")
    (whole,) = package.sweep(TRAIN, output=tmp_path / "whole")
    accuracy = whole.training["accuracy"]
    place = int(accuracy[:-1].argmax())
    grid = TRAIN | {"target-accuracy": float(accuracy[place])}
    killed(grid, tmp_path / "killed", place)
    nothing: list[int] = []
    (run,) = package.sweep(
        grid, output=tmp_path / "killed", progress=lambda index, result: nothing.append(index)
    )

    assert nothing == []
    assert (run.status, run.rounds) == ("complete", place + 1)


@pytest.mark.parametrize("kind", ["train", "private"])
@pytest.mark.parametrize("saves", [1, 2, 3])
def test_a_training_that_was_killed_before_its_checkpoint_goes_on_from_the_one_before(
    tmp_path, kind, saves
):
    needs(kind)
    grid, folder = GRIDS[kind], tmp_path / "killed"
    killed(grid, folder, saves=saves)
    # Once more, and this time before a checkpoint of the second launch.
    killed(grid, folder, saves=2)
    (run,) = package.sweep(grid, output=folder)
    (whole,) = package.sweep(grid, output=tmp_path / "whole")

    assert (run.status, run.rounds, bool(run.validated.all())) == ("complete", ROUNDS, True)
    np.testing.assert_array_equal(run.survived, whole.survived)
    if kind == "train":
        np.testing.assert_array_equal(run.training["accuracy"], whole.training["accuracy"])
    report = hpcfl("report", folder, "--format", "json")
    (told,) = json.loads(report.stdout)["runs"]
    assert (told["rounds_total"], told["status"]) == (ROUNDS, "complete")
    # Whatever nothing goes on from is kept, out of the way of reports.
    files = {*find(folder)}
    (cell,) = load_manifest(folder).cells
    assert files == {*states.parts(folder, cell)}


def test_a_signal_leaves_a_cell_partial_and_the_list_says_so(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(
        '[fixed]\ndevices = 4\n[[grid]]\nprotocol = "fedavg"\ndim = 20\nwarmup = 0\nrounds = 5000\n'
        '[[grid]]\nalgorithm = "fedavg"\nepochs = 1\nrounds = 5000\n'
    )
    for index in (0, 1):
        command = [sys.executable, "-m", "hpcfl", "sweep", str(plan), "--output", str(folder)]
        if index == 0:
            subprocess.run([*command, "--freeze", "--no-shuffle"], check=True, timeout=60)
        job = subprocess.Popen(
            [*command, "--cell", str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        path = folder / load_manifest(folder).cell(index).file
        while job.poll() is None and not (path.exists() and load(path).rounds > 2):
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        _, err = job.communicate(timeout=60)

        assert job.returncode == LEFT_STATUS, err
        assert b"the same command continues" in err
    listed = hpcfl("sweep", plan, "--output", folder, "--dry-run", "--no-shuffle", "--json")
    cells = json.loads(listed.stdout)["cells"]
    shown = hpcfl("sweep", plan, "--output", folder, "--dry-run")

    assert (listed.returncode, shown.returncode) == (0, 0), listed.stderr
    assert [cell["state"] for cell in cells] == ["partial", "partial"]
    for cell in cells:
        assert 2 < cell["rounds_finished"] < cell["rounds"] == 5000
        assert f" {cell['rounds_finished']} of 5000 " in shown.stdout
        assert cell["why"] is None
    assert "(2 partial)" in shown.stdout


@pytest.mark.parametrize("kind", ["bench", "train"])
def test_a_job_of_an_array_that_was_killed_goes_on_when_it_is_submitted_again(tmp_path, kind):
    needs(kind)
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    grid = GRIDS[kind] | {"rounds": 300, "repeats": 2}
    lines = (f"{name} = {json.dumps(value)}" for name, value in grid.items())
    plan.write_text("\n".join(["[grid]", *lines]))
    hpcfl("sweep", plan, "--output", folder, "--freeze")
    command = [sys.executable, "-m", "hpcfl", "sweep", str(plan), "--output", str(folder)]
    job = subprocess.Popen([*command, "--cell", "1"], stdout=subprocess.PIPE)
    cell = load_manifest(folder).cell(1)
    while job.poll() is None and states.look(folder, cell).rounds < 3:
        time.sleep(0.01)
    job.kill()
    job.communicate(timeout=60)
    before = states.look(folder, cell)
    again = hpcfl("sweep", plan, "--output", folder, "--cell", 1)
    after = states.look(folder, cell)

    assert before.state == "partial"
    assert again.returncode == 0, again.stderr
    assert f", behind {before.rounds} rounds of earlier launches: " in again.stdout
    assert (after.state, after.rounds) == ("finished", cell.rounds)
    # Of a training that was killed between a round and its checkpoint, that round is played again.
    assert before.rounds - [*after.run.launches][1] in ((0,) if kind == "bench" else (0, 1))
    assert states.look(folder, load_manifest(folder).cell(0)).state == "pending"


def test_only_finished_rounds_of_a_killed_cell_are_expected_to_be_paid(tmp_path):
    """The time of a cell that is half done is half of what it would be."""
    folder, grid = tmp_path / "out", {"repeats": 2, **BENCH, "rounds": 20, "warmup": 0}
    killed(grid, folder, after=9)
    (tmp_path / "plan.toml").write_text(
        "[grid]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in grid.items())
    )
    index = next(
        cell.index
        for cell in load_manifest(folder).cells
        if states.look(folder, cell).state == "pending"
    )
    hpcfl("sweep", tmp_path / "plan.toml", "--output", folder, "--cell", index)
    cells = load_manifest(folder).cells
    (finished,) = [cell for cell in cells if states.look(folder, cell).state == "finished"]
    (partial,) = [cell for cell in cells if cell is not finished]
    from hpcfl.sweeping.estimate import elapsed_seconds, estimate_seconds

    run = states.look(folder, finished).run
    seconds = estimate_seconds(partial, [(finished, run)], states.look(folder, partial).rounds)
    assert seconds == pytest.approx(elapsed_seconds(run) / 2)


def test_a_file_of_another_version_is_not_gone_on_from_and_the_sentence_says_what_to_do(tmp_path):
    killed(BENCH, tmp_path, after=1)
    (path,) = find(tmp_path)
    with h5py.File(path, "r+") as file:
        file["config"].attrs["clip"] = 0.25
    with pytest.raises(package.HpcflError, match=r"run with clip 0.25, not .* anew, move .*\.h5"):
        package.sweep(BENCH, output=tmp_path)
    path.rename(tmp_path / "away")

    assert package.sweep(BENCH, output=tmp_path)[0].rounds == ROUNDS


def test_a_wrong_aggregate_is_kept_as_evidence_and_the_cell_begins_anew(tmp_path):
    killed(BENCH, tmp_path, after=1)
    (path,) = find(tmp_path)
    with h5py.File(path, "r+") as file:
        file["rounds/validated"][1] = False
    (run,) = package.sweep(BENCH, output=tmp_path)

    assert run.validated.all()
    assert not run.resumed
    (aside,) = (tmp_path / "incomplete").iterdir()
    assert not load(aside).validated.all()


def test_seeds_are_repeats_whether_they_were_interrupted_or_not_and_merge_takes_all_parts(tmp_path):
    needs("train")
    grid, folder, merged = TRAIN | {"seed": [1, 2]}, tmp_path / "out", tmp_path / "merged"
    killed(grid, folder, after=1)
    done = hpcfl("merge", folder, "--output", tmp_path / "early")
    runs = package.sweep(grid, output=folder)
    complete = hpcfl("merge", folder, "--output", merged)
    index = json.loads((merged / "index.json").read_text())["runs"]

    assert done.returncode == 1
    assert "has no results" in done.stderr
    assert (complete.returncode, complete.stderr) == (0, "")
    assert len(index) == 3  # one cell has two parts
    assert {entry["cell"] for entry in index} == {0, 1}
    for found in (runs, package.load_many(merged)):
        (pool,) = group(found, trainings=True)
        assert [run.rounds for run in pool.runs] == [ROUNDS, ROUNDS]
    report = hpcfl("report", merged)
    assert "interrupted" not in report.stdout + report.stderr
