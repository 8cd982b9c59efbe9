"""When enough rounds are measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcfl.benchmark import stopping
from hpcfl.benchmark.experiment import Experiment
from hpcfl.benchmark.stopping import StopRule
from hpcfl.comm.loopback import Loopback
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.results.statistics import median_interval
from hpcfl.rounds.observer import Results
from hpcfl.rounds.session import REASONS
from hpcfl.rounds.timed import Played


def rule(rounds, **options):
    return StopRule(BenchOptions("fedavg", rounds=rounds, **options))


def play(rule, seconds):
    """Return after how many rounds of these seconds a rule stopped, and why."""
    for count, value in enumerate(seconds, 1):
        if reason := rule.after(value):
            return count, reason
    return len(seconds), ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (4, "rounds")),
        ({"max_rounds": 4}, (4, "rounds")),
        ({"max_rounds": 7}, (7, "max_rounds")),
        ({"rel_ci": 0.01}, (40, "max_rounds")),
        ({"max_seconds": 1e9, "max_rounds": 9}, (9, "max_rounds")),
    ],
)
def test_rounds_are_limited(options, expected):
    alternating = [1.0, 2.0] * 50

    assert play(rule(4, **options), alternating) == expected
    assert BenchOptions("fedavg", rounds=4, **options).most_rounds == expected[0]
    assert expected[1] in REASONS


def test_a_narrow_interval_stops_but_not_before_there_is_one():
    # Six samples give an interval, and all must lie within 5 % of their median.
    assert play(rule(1, rel_ci=0.05, max_rounds=50), [1.0] * 50) == (6, "rel_ci")
    assert play(rule(9, rel_ci=0.05), [1.0] * 50) == (9, "rel_ci")
    assert play(rule(1, rel_ci=0.05, max_rounds=7), [1.0, 1.2] * 50) == (7, "max_rounds")


def test_it_stops_with_the_first_interval_that_is_narrow_enough():
    seconds = np.random.default_rng(3).lognormal(0, 0.3, 2000).tolist()
    count, reason = play(rule(6, rel_ci=0.1, max_rounds=2000), seconds)

    assert reason == "rel_ci"
    assert 6 < count < 500
    for stop, narrow in ((count, True), (count - 1, False)):
        found = median_interval(seconds[:stop])
        median = float(np.median(seconds[:stop]))
        reach = max(median - found.low, found.high - median)
        assert (reach <= 0.1 * median) is narrow


def test_time_runs_from_the_start_and_ends_however_few_rounds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    chosen = rule(1000, max_seconds=5)
    now[0] = 106
    assert chosen.after(1.0) == "max_seconds"
    chosen = rule(2, max_seconds=5)
    now[0] = 110.9
    assert [chosen.after(1.0), chosen.after(1.0)] == ["", ""]
    now[0] = 111
    assert chosen.after(1.0) == "max_seconds"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_rounds": 1}, "--max-rounds is 1; it must be at least --rounds, 2"),
        ({"rel_ci": 0.1, "keep_transcript": "t.npz", "insecure_seed": 1}, "--keep-transcript"),
    ],
)
def test_rules_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Experiment.prepare(BenchOptions("secagg", rounds=2, **options), 3)


def test_a_warm_up_that_outlasts_the_time_ends_with_a_measured_round(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(clock))
    rounds = Results[Played]()
    options = BenchOptions("fedavg", dim=10, rounds=1000, warmup=1000, max_seconds=5.5)
    reason = Experiment.prepare(options, 3).run(Loopback(3), rounds)

    # The clock is read once in a round of the warm-up.
    assert [record.warmup for record in rounds.records] == [True] * 5 + [False]
    assert reason == "max_seconds"


def test_noise_is_accounted_for_the_largest_number_of_rounds():
    common: dict[str, Any] = {"dim": 20, "warmup": 1, "dropout": 0.0}
    varying = BenchOptions("dp-fedavg", rounds=2, max_rounds=30, rel_ci=0.01, **common)
    fixed = BenchOptions("dp-fedavg", rounds=30, **common)
    promises = [Experiment.prepare(o, 4).config()["promises"][-1] for o in (varying, fixed)]

    assert promises[0] == promises[1]
    assert "31 rounds" in promises[0]
