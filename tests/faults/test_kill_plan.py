import os
import signal
import subprocess
import sys
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
    assert plan([], world(1, tolerant=False), experiments(8)) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rank=9,phase=unmask,round=0", "rank 9 holds no device; the ranks are 0, .* to 8"),
        ("rank=6+1,phase=unmask,round=0", "rank 6 holds no device; .* to 5"),
        (
            "rank=1,phase=unmsk,round=0",
            "no phase of secagg called 'unmsk'; did you mean 'unmask'",
        ),
        ("rank=1,phase=unmask,round=12", "there is no round 12; the rounds are 0 to 11"),
        ("rank=1,phase=unmask", "cannot be read: write it like rank=7,phase"),
        ("rank=1,phase=unmask,round=1,when=now", "cannot be read"),
        ("rank=1,rank=2,phase=unmask,round=1", "cannot be read"),
        ("", "cannot be read"),
        ("rank=one,phase=unmask,round=1", "ranks are numbers"),
        ("rank=1+,phase=unmask,round=1", "ranks are numbers"),
        ("rank=1,phase=unmask,round=-1", "a round is a number"),
        ("rank=1,phase=unmask,round=1,moment=never", "one of before, during, after"),
    ],
)
def test_what_cannot_be_is_refused(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        plan([text], world(), experiments(8, 5))


def test_helpers_and_all_ranks_of_devices_behind_them_can_die():
    helped = [Experiment.prepare(BenchOptions("assisted", dim=5, helpers=3), 4)]
    kill = Kill(frozenset({1, 7}), "unmask", 0)
    assert [kill] == plan(["rank=1+7,phase=unmask,round=0"], world(), helped)
    with pytest.raises(UsageError, match=r"rank 8 holds no device; .* to 7"):
        plan(["rank=8,phase=unmask,round=0"], world(), helped)


def test_the_refusals_say_how_to_get_ranks_that_can_die():
    text = "rank=1,phase=unmask,round=0"
    with pytest.raises(UsageError, match=r"a process without any: .*mpirun --with-ft ulfm"):
        plan([text], world(1, tolerant=False), experiments(3))
    with pytest.raises(UsageError, match=r"would end the whole job; .*mpirun --with-ft ulfm"):
        plan([text], world(4, tolerant=False), experiments(3))


def test_a_rank_dies_at_its_time_and_at_no_other(monkeypatch):
    struck = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append((pid, number)))
    kills = [Kill(frozenset({1, 2}), "unmask", 3, "during")]
    mine, other = Killer(kills, 2), Killer(kills, 3)
    for index in range(5):
        for moment in ("before", "during", "after"):
            for phase in ("share_keys", "unmask"):
                other.at(index, moment, phase)
                mine.at(index, moment, phase)
                expected = (index, moment, phase) == (3, "during", "unmask")
                assert len(struck) == expected, (index, moment, phase)
                struck.clear()


def test_it_is_a_death_that_nothing_can_catch():
    code = (
        "from hpcfl.rounds.kill import Kill, Killer\n"
        "try:\n    Killer([Kill(frozenset({0}), 'x', 0)], 0).at(0, 'before', 'x')\n"
        "finally:\n    print('caught')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
