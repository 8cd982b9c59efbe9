"""Cells that were interrupted or killed go on behind the rounds that they had finished.

What a kill leaves is what is in the folder at that time: a copy of it, made after a round or before
a checkpoint is written, is a sweep that was killed there.
"""

import shutil
from unittest import mock

import h5py
import numpy as np
import pytest

import hpcfl as package
from hpcfl.results import load
from hpcfl.results.reader import find
from hpcfl.sweeping import states
from hpcfl.sweeping.manifest import load as load_manifest
from hpcfl.system.interruption import Interruption, Left

ROUNDS = 4
BENCH = {"protocol": "secagg", "devices": 4, "dim": 300, "rounds": ROUNDS - 1, "warmup": 1}
TRAIN = {"algorithm": "fedavg", "aggregate": "fedavg", "devices": 4}
TRAIN |= {"rounds": ROUNDS, "epochs": 1, "dropout": 0.3}
PRIVATE = {"algorithm": "cdp", "aggregate": "secagg", "devices": 4, "rounds": ROUNDS, "steps": 2}
PRIVATE |= {"noise-multiplier": 1.0, "dropout": 0.0, "gamma": 0.0}
GRIDS = {"bench": BENCH, "train": TRAIN, "private": PRIVATE}
pytest.importorskip("torch")
pytest.importorskip("sklearn")


def swept(grid, folder, played=lambda index, result: None):
    """Return the run of a sweep of one cell."""
    (run,) = package.sweep(grid, output=folder, progress=played)
    return run


def progress(folder):
    """Return how far the only cell of a sweep is."""
    (cell,) = load_manifest(folder).cells
    return states.look(folder, cell)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a folder with a whole sweep of each kind, and what was there of it on the way.

    ``KIND-0``, say, is that of one killed after its first round, ``KIND-save-1`` of one killed
    before its first checkpoint was written.
    """
    from hpcfl.training.checkpoint import Checkpoint

    place = tmp_path_factory.mktemp("killed")
    for kind, grid in GRIDS.items():
        whole, saves, save = place / kind, [0], Checkpoint.save

        def saving(self, path, kind=kind, whole=whole, saves=saves, save=save):
            saves[0] += 1
            shutil.copytree(whole, place / f"{kind}-save-{saves[0]}")
            save(self, path)

        def played(index, result, kind=kind, whole=whole):
            shutil.copytree(whole, place / f"{kind}-{index}")

        with mock.patch.object(Checkpoint, "save", saving):
            swept(grid, whole, played)
    return place


def assert_goes_on(folder, kind, whole):
    """Check that a sweep that was killed ends as one that was not."""
    seen: list[int] = []
    before = progress(folder).rounds
    run = swept(GRIDS[kind], folder, lambda index, result: seen.append(index))

    # One round may have been played in vain: its checkpoint was not written.
    assert seen == [*range(seen[0] if seen else ROUNDS, ROUNDS)]
    assert ROUNDS - before <= len(seen) <= ROUNDS - before + (kind != "bench")
    assert (run.status, run.rounds, bool(run.validated.all())) == ("complete", ROUNDS, True)
    np.testing.assert_array_equal(run.survived, whole.survived)
    if kind == "train":
        # Nothing random is lost or drawn twice: it is the training that was never killed.
        for name in ("accuracy", "loss", "bytes_up_total"):
            np.testing.assert_array_equal(run.training[name], whole.training[name])
    # Whatever nothing goes on from is kept, out of the way of reports.
    (cell,) = load_manifest(folder).cells
    assert find(folder) == [folder / cell.file]
    assert progress(folder).state == "finished"
    assert swept(GRIDS[kind], folder, lambda *_: pytest.fail("played again")).rounds == ROUNDS
    return run


@pytest.mark.parametrize(
    ("kind", "after"),
    [("bench", 1), ("bench", ROUNDS - 1), ("train", 1), ("train", ROUNDS - 1), ("private", 1)],
)
def test_a_cell_that_was_killed_goes_on_behind_its_last_round(killed, kind, after):
    folder = killed / f"{kind}-{after}"
    whole = progress(killed / kind).run
    found = progress(folder)
    run = assert_goes_on(folder, kind, whole)

    assert found.state == "partial"
    assert found.rounds == after + 1
    assert (run.bytes_up[: found.rounds] == found.run.bytes_up[: found.rounds]).all()
    if kind == "private" and after < ROUNDS - 1:
        # What may have been played in vain is charged for.
        assert run.training["epsilon_proven"][-1] >= whole.training["epsilon_proven"][-1]


@pytest.mark.parametrize(("kind", "saves"), [("train", 1), ("private", 2)])
def test_a_training_that_was_killed_before_its_checkpoint_goes_on_from_the_one_before(
    killed, kind, saves
):
    assert_goes_on(killed / f"{kind}-save-{saves}", kind, progress(killed / kind).run)


def test_a_signal_ends_a_sweep_between_rounds_and_the_next_launch_goes_on(tmp_path, monkeypatch):
    asked = Interruption()
    monkeypatch.setattr("hpcfl.sweeping.session.current", lambda: asked)
    asked.asked = True
    with pytest.raises(Left, match="the same command continues"):
        swept(BENCH, tmp_path)
    asked.asked = False

    assert swept(BENCH, tmp_path).rounds == ROUNDS


def test_another_version_and_a_wrong_aggregate_are_not_gone_on_from(killed, tmp_path):
    for name in ("other", "wrong"):
        shutil.copytree(killed / "bench-0", tmp_path / name)
    (path,) = find(tmp_path / "other")
    with h5py.File(path, "r+") as file:
        file["config"].attrs["clip"] = 0.25
    with pytest.raises(package.HpcflError, match=r"run with clip 0.25, not .* anew, move .*\.h5"):
        swept(BENCH, tmp_path / "other")

    (path,) = find(tmp_path / "wrong")
    with h5py.File(path, "r+") as file:
        file["rounds/validated"][0] = False
    run = swept(BENCH, tmp_path / "wrong")
    assert run.validated.all()
    assert not run.resumed
    # It is kept as evidence.
    (aside,) = (tmp_path / "wrong" / "incomplete").iterdir()
    assert not load(aside).validated.all()
