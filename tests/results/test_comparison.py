"""Whether B is slower than A."""

import json
from dataclasses import replace

import numpy as np
import pytest
from commandline import hpcfl, refusal
from run_files import write_seconds

from hpcfl.errors import HpcflError, UsageError
from hpcfl.results.comparison import compare, one_configuration
from hpcfl.results.reader import load
from hpcfl.results.statistics import mann_whitney

TEN = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09]


def pool(folder, name, seconds=TEN, **options):
    return one_configuration([load(write_seconds(folder / f"{name}.h5", seconds, **options))], name)


def compared(folder, a, b, **options):
    return compare(pool(folder, "a", a), pool(folder, "b", b), **options)


def test_a_slowdown_is_found_with_its_size(tmp_path):
    found = compared(tmp_path, TEN, [1.5 * seconds for seconds in TEN])

    assert found.verdict == "more"
    assert found.ratio == pytest.approx(1.5)
    assert found.ratio_interval.low < 1.5 < found.ratio_interval.high
    assert found.p_value == mann_whitney(TEN, [1.5 * seconds for seconds in TEN])[1]
    assert found.difference == pytest.approx(0.5, abs=0.03)
    assert (found.a.median, found.b.median) == pytest.approx((1.045, 1.5675))
    assert found.sentence.startswith("B is slower by 50 % [")
    assert found.exceeds(0.4)
    # The estimate is above 49 %, its interval is not.
    assert not found.exceeds(0.49)


@pytest.mark.parametrize(
    ("a", "b", "outcome", "sentence"),
    [
        (TEN, TEN, "not distinguishable", "not distinguishable (p = 1, level 0.05)"),
        ([1, 2, 3], [100, 200, 300], "too few samples", "3 against 3 rounds are too few"),
        ([1], [2, 3], "too few samples", "1 against 2 rounds are too few"),
        ([1, 2, 3, 4], [100, 200, 300, 400], "more", "B is slower by"),
        ([0.0] * 6, [1.0] * 6, "more", "B is slower by 1 s"),
        ([1.25 * seconds for seconds in TEN], TEN, "less", "B is faster by 20 % ["),
    ],
)
def test_what_is_found_is_said_in_a_sentence(tmp_path, a, b, outcome, sentence):
    found = compared(tmp_path, a, b)

    assert found.verdict == outcome
    assert sentence in found.sentence
    if a[0] == 0:
        assert found.ratio is None
        with pytest.raises(HpcflError, match="no ratio"):
            found.exceeds(0.05)
    else:
        assert found.exceeds(0.05) == (outcome == "more")


def test_every_metric_has_its_own_samples(tmp_path):
    a, b = pool(tmp_path, "a", [1.0] * 8), pool(tmp_path, "b", [2.0] * 8, scale=2)
    medians = {
        metric: compare(a, b, metric).b.median
        for metric in ("device_cpu_seconds", "server_cpu_seconds", "modelled_seconds")
    }
    sent = compare(a, b, "bytes_up")

    # simple_record: device 0 computes 7 ms, the server 60 ms, times scale and the round's seconds.
    assert medians["device_cpu_seconds"] == pytest.approx(0.028)
    assert medians["server_cpu_seconds"] == pytest.approx(0.240)
    # As in the tests of the summary, twice, with twice the CPU seconds.
    assert medians["modelled_seconds"] == pytest.approx(2 * (0.0741525 + 0.070) - 0.004, abs=1e-4)
    # The survivors send 110, 210 and 310 bytes.
    assert (sent.a.median, sent.b.median) == (210, 420)
    assert (sent.verdict, sent.ratio) == ("more", pytest.approx(2))
    assert sent.sentence == "B needs more by 100 % [100, 100]"


def drawn(folder, name, places):
    """Return launches of ten rounds, each somewhere else."""
    return [
        load(write_seconds(folder / name / f"{i}.h5", [place + s for s in TEN]))
        for i, place in enumerate(places)
    ]


def test_launches_are_the_samples_where_they_differ_more_than_their_rounds(tmp_path):
    # The same program, three launches a side: whoever counts rounds finds that B is faster.
    places = {"a": [0.0, 0.3, 0.2], "b": [0.1, 0.0, 0.05]}
    a, b = (one_configuration(drawn(tmp_path, *side), side[0]) for side in places.items())
    samples = (np.concatenate([run.round_seconds for run in side.runs]) for side in (a, b))
    assert mann_whitney(*samples)[1] < 0.05
    chosen = compare(a, b)

    assert (chosen.sampled_by, chosen.a.samples, chosen.b.samples) == ("launches", 3, 3)
    assert chosen.verdict == "too few samples"
    assert any(note.startswith("samples are launches") for note in chosen.table().notes)
    assert not chosen.exceeds(0)


def test_whether_launches_differ_is_asked_of_what_is_compared(tmp_path):
    runs = drawn(tmp_path, "a", [0.0, 0.3, 0.2])
    steady = [replace(run, cpu_seconds=np.full_like(run.cpu_seconds, 0.25)) for run in runs]
    side = one_configuration(steady, "A")

    assert compare(side, side).sampled_by == "launches"
    single = one_configuration(runs[:1], "A")
    assert compare(single, single).sampled_by == "rounds"
    assert compare(side, side, "device_cpu_seconds").sampled_by == "rounds"


def test_runs_of_other_sizes_are_refused_and_other_machines_warned_of(tmp_path):
    a = pool(tmp_path, "a")
    with pytest.raises(UsageError, match="10 parameters, B has 4 and 11"):
        compare(a, pool(tmp_path, "b", dim=11))
    elsewhere = pool(tmp_path, "c", environment={"transport": "mpi"}, protocol="sparse", alpha=0.2)
    found = compare(a, elsewhere)

    assert found.configuration == {"alpha": (0.1, 0.2), "protocol": ("secagg", "sparse")}
    assert found.machine == {"transport": ("loopback", "mpi")}
    assert "options differ: alpha: 0.1 | 0.2" in found.table().notes
    with pytest.raises(UsageError, match="different links"):
        compare(a, pool(tmp_path, "d", uplink_mbps=1.0), "modelled_seconds")
    with pytest.raises(HpcflError, match="B has no measured round"):
        compare(a, pool(tmp_path, "e", [], warmup=1.0))


def test_what_disturbed_a_side_is_said_of_seconds(tmp_path):
    busy = pool(tmp_path, "b", environment={"before_load_1min": 5.0, "cores_usable": 2})
    found = compare(pool(tmp_path, "a"), busy)

    (sentence,) = found.warnings
    assert sentence.startswith("B: ")
    assert f"warning: {sentence}" in found.table().notes
    assert compare(busy, busy, "bytes_up").warnings == ()


def test_a_side_is_one_configuration(tmp_path):
    runs = [load(write_seconds(tmp_path / f"{x}.h5", TEN, alpha=x)) for x in (0.1, 0.2)]
    with pytest.raises(UsageError, match="A holds 2 configurations, which differ in alpha"):
        one_configuration(runs, "A")


def test_the_command_says_it_with_its_exit_status(tmp_path):
    a = write_seconds(tmp_path / "a" / "1.h5", TEN)
    write_seconds(tmp_path / "b" / "1.h5", [1.2 * seconds for seconds in TEN], seed=1)
    write_seconds(tmp_path / "b" / "2.h5", [1.2 * seconds for seconds in TEN], seed=2)
    b = tmp_path / "b"
    plain = hpcfl("compare", a, b)
    slower = hpcfl("compare", a, b, "--fail-if-slower", "5%", "--json")
    within = hpcfl("compare", a, b, "--fail-if-slower", "0.3")
    same = hpcfl("compare", a, a, "--fail-if-slower", "0%")

    assert plain.returncode == 0
    assert "B is slower by 20 % [" in plain.stdout
    (row,) = (line.split() for line in plain.stdout.splitlines() if line.startswith("B  "))
    assert row[-4:] == ["20", "2", "1.h5", "..."]
    assert "a side has one launch" in plain.stdout
    assert slower.returncode == 3
    assert slower.stderr.count("\n") == 1
    document = json.loads(slower.stdout)
    assert document["slower_than_limit"] is True
    assert (document["verdict"], document["b"]["samples"]) == ("more", 20)
    assert document["ratio"] == pytest.approx(1.2)
    assert within.returncode == same.returncode == 0
    assert "is not a share like 5% or 0.05" in refusal("compare", a, a, "--fail-if-slower", "5")
    assert "not distinguishable" in same.stdout
