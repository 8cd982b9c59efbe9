"""Training that is told to leave, and training whose round does not end in time after a signal."""

import os
import shutil
import signal
import time

import numpy as np
import pytest
import runs

from hpcfl.comm.world import World
from hpcfl.errors import AgreedError, HpcflError, UsageError
from hpcfl.results import load
from hpcfl.results.writer import ResultsWriter
from hpcfl.rounds.observer import RoundObserver
from hpcfl.system.interruption import LEFT_STATUS, noting_signals
from hpcfl.training import session
from hpcfl.training.report import render_end

pytest.importorskip("torch")


def train(folder, rounds=4, number=None, then=lambda: None, **options):
    """Train, and send this process a signal in the second round; return the model."""

    class Signalled(RoundObserver):
        def finished(self, index, result):
            if number is not None and index == 1:
                os.kill(os.getpid(), number)
                then()

    options = {"dropout": 0.3, "rounds": rounds} | options
    with noting_signals():
        return runs.train(folder / "run.h5", devices=4, observer=Signalled(), **options).weights


def test_a_signal_lets_the_round_end_and_leaves_a_checkpoint(tmp_path):
    for name in ("told", "whole"):
        (tmp_path / name).mkdir()
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)]
    with pytest.raises(
        AgreedError, match="after 2 rounds; continue with hpcfl train --resume"
    ) as told:
        train(tmp_path / "told", number=signal.SIGTERM)

    assert told.value.exit_status == LEFT_STATUS == 75
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)] == before
    run = load(tmp_path / "told" / "run.h5")
    assert (run.rounds, run.status) == (2, "interrupted")
    resumed = train(tmp_path, resume=run.path, checkpoint_every=4)
    np.testing.assert_array_equal(resumed, train(tmp_path / "whole"))
    assert load(run.path).rounds == 4
    with pytest.raises(UsageError, match="nothing left to train"):
        train(tmp_path, resume=run.path)


def test_what_cannot_be_resumed_leaves_without_a_checkpoint(tmp_path):
    with pytest.raises(AgreedError, match="the run cannot be continued") as told:
        train(tmp_path, number=signal.SIGUSR1, algorithm="top-k", error_feedback=True)

    assert told.value.exit_status == 1
    assert not list(tmp_path.glob("*.npz"))


def test_a_checkpoint_is_there_before_the_round_ends(tmp_path):
    """A round that does not end in time costs nothing but itself."""
    told, given_up = tmp_path / "told", tmp_path / "given up"
    told.mkdir()

    def give_up():
        end = time.monotonic() + 10
        while not list(told.glob("*.npz")) and time.monotonic() < end:
            time.sleep(0.01)
        shutil.copytree(told, given_up)

    with pytest.raises(AgreedError):
        train(told, number=signal.SIGUSR1, then=give_up)
    run = load(given_up / "run.h5")

    assert (run.status, run.rounds) == ("interrupted", 2)
    (tmp_path / "whole").mkdir()
    resumed = train(given_up, resume=run.path)
    np.testing.assert_array_equal(resumed, train(tmp_path / "whole"))


def test_a_round_that_is_not_stored_is_behind_no_checkpoint(tmp_path, monkeypatch):
    append, full = ResultsWriter.append, [True]

    def failing(writer, record, figures):
        if writer.written == 2 and full[0]:
            raise HpcflError("the disk is full")
        append(writer, record, figures)

    monkeypatch.setattr(ResultsWriter, "append", failing)
    with pytest.raises(HpcflError, match="the disk is full"):
        train(tmp_path, checkpoint_every=1)
    full[0] = False
    resumed = train(tmp_path, resume=tmp_path / "run.h5")

    assert load(tmp_path / "run.h5").rounds == 4
    (tmp_path / "whole").mkdir()
    np.testing.assert_array_equal(resumed, train(tmp_path / "whole"))


def test_what_is_complete_or_of_another_run_is_not_trained_again(tmp_path):
    path, state = tmp_path / "run.h5", tmp_path / "run.checkpoint.npz"
    train(tmp_path, rounds=2, checkpoint_every=1)
    older = state.read_bytes()
    train(tmp_path, rounds=4, resume=path)
    assert load(path).rounds == 4
    with pytest.raises(UsageError, match="nothing left to train"):
        train(tmp_path, rounds=3, resume=path)
    # What the second launch was asked for holds from then on.
    again = session.asked(World(None), {"resume": str(path)})
    assert (again.rounds, again.resume) == (4, path)

    path.unlink()
    with pytest.raises(AgreedError):
        train(tmp_path, rounds=4, number=signal.SIGUSR1)
    state.write_bytes(older)
    with pytest.raises(UsageError, match="it is of another run"):
        train(tmp_path, rounds=4, resume=path)


def test_fewer_rounds_than_are_behind_it_are_refused(tmp_path):
    with pytest.raises(AgreedError):
        train(tmp_path, number=signal.SIGUSR1)
    with pytest.raises(UsageError, match=r"is behind round 2, .* --rounds is 1"):
        train(tmp_path, rounds=1, resume=tmp_path / "run.h5")


def test_a_training_that_has_reached_its_target_says_so_again(tmp_path):
    options = {"target_accuracy": 0.01, "checkpoint_every": 1}
    train(tmp_path, **options)
    trained = runs.train(
        tmp_path, devices=4, rounds=4, dropout=0.3, resume=tmp_path / "run.h5", **options
    )

    assert trained.results == []
    said = render_end(load(trained.path))
    assert "after 1 round, all aggregates validated\nstopped because" in said
