"""Rounds that are played again by a launch that goes on from a checkpoint: what they cost."""

import math
from collections import Counter

import numpy as np
import pytest
from runs import epsilons
from runs import train_privately as train
from scipy import optimize, stats

from hpcfl.algorithms.federated.base import FederatedAlgorithm
from hpcfl.errors import UsageError
from hpcfl.learning import private
from hpcfl.results import load
from hpcfl.training import checkpoint

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
    """Train beyond the last checkpoint, as a run does that is killed then; return it."""
    run = train(folder, name, rounds=rounds, checkpoint_every=every, **options)
    return checkpoint.path_for(run.path)


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


@pytest.mark.parametrize(("resumes", "shown", "before"), [(1, 6.652, 10.12), (3, 10.12, 15.66)])
@pytest.mark.parametrize("old", [False, True])
def test_what_is_printed_holds_for_all_that_was_seen(
    tmp_path, monkeypatch, old, resumes, shown, before
):
    """The true value is that of the accesses that there were, of the record that had the most.

    If what is played again had the batches that it had, as it once was, it would be above.
    """
    if old:
        monkeypatch.setattr(FederatedAlgorithm, "play_index", lambda self, index: index)
    uses = count_uses(monkeypatch)
    state = killed(tmp_path, 5, 4, **CDP)
    for _ in range(resumes):
        # Each ends without a checkpoint of its own, so that the next one plays it again.
        last = train(tmp_path, "cdp", rounds=6, resume=state, **CDP)
    true = exact_epsilon(math.sqrt(max(uses.values())) * 2 / (28 * 0.05))

    assert true == pytest.approx(before if old else shown, abs=0.01)
    if not old:
        assert printed(last) == pytest.approx(shown, abs=0.01)
        assert printed(last) >= true * (1 - 1e-6)


def test_all_that_was_played_after_a_checkpoint_is_charged(tmp_path):
    """However it came about: checkpoints less often than before, or none; no round after them."""
    options = CDP | {"shuffle": "fresh"}
    whole = epsilons(train(tmp_path, "cdp", rounds=21, **options))
    # At the end of a run nothing is at risk, until another goes on from there.
    state = killed(tmp_path, 3, 3, **options)
    first = train(tmp_path, "cdp", rounds=9, resume=state, **options)
    again = train(tmp_path, "cdp", rounds=9, resume=state, checkpoint_every=7, **options)

    assert printed(first) == whole[9 - 1]
    assert printed(again) == whole[9 + 6 - 1]
    assert load(again.path).config["rounds_repeated"] == 6
    assert any("6 rounds that earlier launches may have played in vain" in n for n in again.notes)
    # It wrote none, and went on to round 9: six rounds more.
    third = train(tmp_path, "cdp", rounds=9, resume=state, checkpoint_every=1, **options)
    assert printed(third) == whole[9 + 12 - 1]


def test_rounds_before_the_first_checkpoint_are_charged_and_drawn_anew_as_well(
    tmp_path, monkeypatch
):
    """A job that dies early goes on, when it is started again, from a file that knows of them."""
    options = CDP | {"shuffle": "fresh"}
    whole = epsilons(train(tmp_path, "cdp", rounds=12, **options))
    uses = count_uses(monkeypatch)
    state = killed(tmp_path, 3, 5, **options)
    first = Counter(uses)
    uses.clear()
    again = train(tmp_path, "cdp", rounds=9, resume=state, checkpoint_every=5, **options)

    assert len(again.results) == 9
    assert printed(again) == whole[9 + 3 - 1]
    assert first - uses, "other batches than before"


def test_there_is_one_checkpoint_to_go_on_from(tmp_path):
    """Two files that can be gone on from would not know of each other's rounds."""
    state = killed(tmp_path, 4, 3, **CDP)
    times = state.stat().st_mtime_ns
    later = train(tmp_path, "cdp", rounds=5, resume=state, checkpoint_every=1, **CDP)
    successor = checkpoint.path_for(later.path)

    with pytest.raises(UsageError, match=f"is superseded: .* has written .*{successor.name}"):
        train(tmp_path, "cdp", rounds=6, resume=state, **CDP)
    # Scripts go on from the latest file.
    assert times <= state.stat().st_mtime_ns < successor.stat().st_mtime_ns
    assert len(train(tmp_path, "cdp", rounds=6, resume=successor, **CDP).results) == 1


def test_a_run_without_privacy_goes_on_from_the_same_file_as_often_as_it_likes(tmp_path):
    options = {"epochs": 1, "steps": None, "devices": 4}
    whole = train(tmp_path, "fedavg", rounds=4, **options)
    state = killed(tmp_path, 3, 2, "fedavg", **options)
    content = state.read_bytes()
    for _ in range(2):
        resumed = train(tmp_path, "fedavg", rounds=4, resume=state, checkpoint_every=1, **options)
        assert np.array_equal(resumed.weights, whole.weights)
    assert state.read_bytes() == content


@pytest.mark.parametrize("name", ["dp-fedavg", "locks"])
def test_participants_of_a_replayed_round_are_drawn_anew(tmp_path, name):
    options = {
        "devices": 30,
        "per_round": 10,
        "sampling": "poisson",
        "noise_multiplier": 1.0,
        "steps": 1,
        "batch_size": 5,
    }
    run = train(tmp_path, name, rounds=3, checkpoint_every=2, **options)
    state = checkpoint.path_for(run.path)
    resumed = load(train(tmp_path, name, rounds=4, resume=state, **options).path)
    long = load(train(tmp_path, name, rounds=6, **options).path)

    # Two rounds were at risk: those that are played now are the fifth and the sixth of all.
    invited = resumed.messages_down.any(axis=1)
    assert np.array_equal(invited, long.messages_down.any(axis=1)[4:6])
    assert not np.array_equal(invited, long.messages_down.any(axis=1)[2:4])
    assert np.isclose(resumed.training["epsilon_proven"][-1], long.training["epsilon_proven"][-1])
