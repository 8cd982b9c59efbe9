"""Ranks that kill themselves on purpose (`--kill`)."""

import os
from itertools import product
from types import SimpleNamespace

import pytest

from hpcfl.benchmark.experiment import Experiment
from hpcfl.errors import UsageError
from hpcfl.options.bench import BenchOptions
from hpcfl.rounds.kill import Kill, Killer, plan


def world(size=9, tolerant=True):
    return SimpleNamespace(size=size, tolerant=tolerant)


def experiments(*devices):
    return [Experiment.prepare(BenchOptions("secagg", dim=5, dropout=0.0), n) for n in devices]


def test_a_plan_says_who_dies_when():
    texts = ["rank=7,phase=masked_input,round=3", "round=0,moment=after,rank=2+4,phase=unmask"]

    assert plan(texts, world(), experiments(8)) == [
        Kill(frozenset({7}), "masked_input", 3, "before"),
        Kill(frozenset({2, 4}), "unmask", 0, "after"),
    ]
    # Helpers and all ranks of devices behind them can die.
    helped = [Experiment.prepare(BenchOptions("assisted", dim=5, helpers=3), 4)]
    assert plan(["rank=7,phase=unmask,round=0"], world(), helped)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rank=6+1,phase=unmask,round=0", "rank 6 holds no device; .* to 5"),
        ("rank=1,phase=unmsk,round=0", "no phase of secagg called 'unmsk'"),
        ("rank=1,phase=unmask,round=12", "there is no round 12; the rounds are 0 to 11"),
        ("rank=1,phase=unmask", "cannot be read: write it like rank=7,phase"),
        ("rank=one,phase=unmask,round=1", "cannot be read"),
        ("rank=1,phase=unmask,round=1,moment=never", "one of before, during, after"),
    ],
)
def test_what_cannot_be_is_refused(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        plan([text], world(), experiments(8, 5))
    with pytest.raises(UsageError, match="mpirun --with-ft ulfm"):
        plan(["rank=1,phase=unmask,round=0"], world(4, tolerant=False), experiments(3))


@pytest.mark.parametrize(("rank", "dies"), [(2, [(3, "during", "unmask")]), (3, [])])
def test_a_rank_dies_at_its_time_and_at_no_other(monkeypatch, rank, dies):
    struck = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append(time))
    killer = Killer([Kill(frozenset({1, 2}), "unmask", 3, "during")], rank)
    for time in product(range(5), ("before", "during", "after"), ("share_keys", "unmask")):
        killer.at(*time)

    assert struck == dies
