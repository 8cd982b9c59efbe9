"""Rounds that are played again by a launch that goes on from a checkpoint: what they cost."""

import math
from collections import Counter

import numpy as np
import pytest
from run_files import cut
from runs import epsilons
from runs import train_privately as train
from scipy import optimize, stats

from hpcfl.learning import private
from hpcfl.results import load
from hpcfl.training.checkpoint import Checkpoint
from hpcfl.training.report import render_end

# The setting of the audit: an epoch has more steps than there are rounds, and a record is used once
# in it at the most.
CDP = {"devices": 5, "steps": 1, "sigma": 0.05, "batch_size": 28}


def exact_epsilon(mu, delta=1e-5):
    """Solve Balle and Wang's (2018) equation of the Gaussian mechanism for epsilon."""

    def excess(epsilon):
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        return float(first - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(optimize.brentq(excess, 0, 100))


def killed(folder, rounds, every, name="cdp", **options):
    """Train as a run does that is killed behind its last checkpoint; return its results file."""
    run = train(folder, name, rounds=rounds, checkpoint_every=every, **options)
    cut(run.path, rounds)
    return run.path


def count_uses(monkeypatch):
    """Count in how many batches each record of each device is, from now on."""
    uses = Counter()
    batches = private.batches

    def counted(*settings):
        for batch in batches(*settings):
            uses.update((settings[-1].spawn_key[-1], record) for record in batch.tolist())
            yield batch

    monkeypatch.setattr(private, "batches", counted)
    return uses


def printed(trained):
    return epsilons(trained)[-1]


def test_what_is_printed_holds_for_all_that_was_seen(tmp_path, monkeypatch):
    """The true value is that of the accesses that there were, of the record that had the most."""
    uses = count_uses(monkeypatch)
    monkeypatch.setattr(Checkpoint, "save", saved_once(Checkpoint.save))
    path = killed(tmp_path, 5, 5, **CDP)
    for _ in range(2):
        last = train(tmp_path, "cdp", rounds=6, resume=path, **CDP)
        cut(path, 6)
    true = exact_epsilon(math.sqrt(max(uses.values())) * 2 / (28 * 0.05))

    # All that was seen, and for each launch a round that may have been.
    assert printed(last) >= true * (1 - 1e-6)


def saved_once(save):
    """Return what writes a checkpoint before the first round, and none behind it."""

    def saving(state, path):
        if state.next_round == 0:
            save(state, path)

    return saving


def test_all_that_was_played_behind_a_checkpoint_is_charged(tmp_path, monkeypatch):
    options = CDP | {"shuffle": "fresh"}
    whole = epsilons(train(tmp_path, "cdp", rounds=21, **options))
    # Nothing is at risk at the end of a run.
    path = train(tmp_path, "cdp", rounds=3, checkpoint_every=3, **options).path
    monkeypatch.setattr(Checkpoint, "save", lambda state, path: None)
    first = train(tmp_path, "cdp", rounds=9, resume=path, **options)
    assert printed(first) == whole[9 - 1]

    # It wrote no checkpoint, and was killed in round 9: seven rounds that are played again.
    cut(path, 9)
    again = train(tmp_path, "cdp", rounds=10, resume=path, **options)
    assert printed(again) == whole[10 + 7 - 1]
    assert load(path).config["rounds_repeated"] == 7
    assert "7 rounds that earlier launches may have played in vain" in render_end(load(path))
    assert load(path).rounds == 10


def test_rounds_before_the_first_checkpoint_are_charged_and_drawn_anew_as_well(
    tmp_path, monkeypatch
):
    """A job that dies early goes on, when it is started again, from a file that knows of them."""
    options = CDP | {"shuffle": "fresh"}
    whole = epsilons(train(tmp_path, "cdp", rounds=13, **options))
    uses = count_uses(monkeypatch)
    monkeypatch.setattr(Checkpoint, "save", saved_once(Checkpoint.save))
    path = killed(tmp_path, 3, 5, **options)
    first = Counter(uses)
    uses.clear()
    again = train(tmp_path, "cdp", rounds=9, resume=path, checkpoint_every=5, **options)

    assert len(again.results) == 9
    assert printed(again) == whole[9 + 4 - 1]
    assert first - uses, "other batches than before"


@pytest.mark.parametrize("name", ["dp-fedavg", "locks"])
def test_participants_of_a_replayed_round_are_drawn_anew(tmp_path, name):
    options = {"devices": 30, "per_round": 10, "sampling": "poisson", "noise_multiplier": 1.0}
    options |= {"steps": 1, "batch_size": 5}
    run = train(tmp_path, name, rounds=3, checkpoint_every=3, **options)
    cut(run.path, 3)
    resumed = load(train(tmp_path, name, rounds=5, resume=run.path, **options).path)
    long = load(train(tmp_path, name, rounds=6, **options).path)

    # A round was at risk: those that are played now are the fifth and the sixth of all.
    invited = resumed.messages_down.any(axis=1)[3:]
    assert np.array_equal(invited, long.messages_down.any(axis=1)[4:6])
    assert not np.array_equal(invited, long.messages_down.any(axis=1)[3:5])
    assert np.isclose(resumed.training["epsilon_proven"][-1], long.training["epsilon_proven"][-1])
