import math
from types import SimpleNamespace

import numpy as np
import pytest

from hpcfl.learning import datasets
from hpcfl.privacy.accounting import sampling
from hpcfl.reproduce import ARTEFACTS, multipliers, overlaps
from hpcfl.reproduce.artefact import DIFFERS, MATCHES, MORE, Artefact, Line, Result, Scale
from hpcfl.reproduce.document import tally, verdict
from hpcfl.reproduce.sparse_readings import (
    READINGS,
    factors_of,
    lines,
    paired,
    round_factor,
    why_bytes,
    why_time,
)
from hpcfl.reproduce.store import Store
from hpcfl.reproduce.verdicts import OPEN, SHOWN, UNDECIDED

DIM = 1_663_370


def round_of(protocol, locations="bitmap", **more):
    setting = {"protocol": protocol, "devices": 100, "dim": DIM, "rounds": 1}
    found = {"other_bytes_up": 20_000.0, "bytes_down": 4.0 * DIM, "modelled_seconds": 1.0}
    return Result({**setting, "locations": locations}, found | more)


def played():
    return {
        name: {**round_of(name).setting, **round_of(name).found} for name in ("secagg", "sparse")
    }


def reading(**changes):
    first = vars(READINGS[0]) | changes
    return next(one for one in READINGS if vars(one) == first)


def test_a_round_as_the_text_counts_it_is_that_of_table_1():
    factor = round_factor(READINGS[0], played(), DIM)

    share = 1 - (1 - 0.1 / 99) ** 99
    assert factor == pytest.approx(32 / (32 * share + 1), rel=1e-4)
    assert factor == pytest.approx(7.91, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({"words": "64 bits a value for secagg, 32 for sparse"}, 2),
        ({"dropped": "secagg's dropped devices send again"}, 1 / 0.7),
    ],
)
def test_a_changed_reading_changes_the_factor_by_what_it_says(changes, times):
    factor = round_factor(reading(**changes), played(), DIM)

    assert factor == pytest.approx(times * round_factor(READINGS[0], played(), DIM))


def test_what_else_is_sent_brings_both_closer_together():
    vectors, up, both = (
        round_factor(reading(counted=counted), played(), DIM)
        for counted in ("vectors", "all that is sent up", "all that is sent up and down")
    )

    assert vectors > up > both > 1


def run_of(protocol, rounds, modelled_seconds=math.inf, **setting):
    """Return a run that trains for one second in every round."""
    like = {"dataset": "mnist", "partition": "iid", "target": 0.97, "model": "2nn", "devices": 25}
    found = {"rounds": rounds, "reached": True, "dim": DIM, "modelled_seconds_of_training": rounds}
    found["modelled_seconds"] = modelled_seconds
    return Result({**like, "most_rounds": 9, "protocol": protocol, **setting}, found)


def test_runs_are_paired_by_seed_and_half_a_pair_is_left_out():
    results = [
        run_of("secagg", 6, seed=1),
        run_of("secagg", 20),
        run_of("sparse", 10),
        run_of("sparse", 4, seed=1),
        run_of("sparse", 4, seed=2),
        run_of("secagg", 99, server_learning_rate=0.7),
        round_of("secagg"),
    ]

    (runs,) = paired(results)

    assert sorted(runs.ratios("rounds")) == [1.5, 2.0]


def test_a_line_names_the_readings_that_reach_what_is_printed_with_its_own_rounds():
    factors = factors_of([round_of("secagg"), round_of("sparse"), round_of("sparse", "gaps")])

    def why(secagg, sparse, figure):
        (runs,) = paired([run_of("secagg", secagg), run_of("sparse", sparse)])
        return why_bytes(factors, figure, runs)

    doubled = "32 for sparse, bitmap, vectors (15.8 x)"
    assert "ways to count a round 2 come" in why(5, 5, "figure-5")
    assert doubled not in why(5, 5, "figure-5")
    assert doubled in why(23, 20, "figure-5")
    assert "contradict the text; with the least changes" in why(23, 20, "figure-5")
    # As the text counts it.
    assert "contradict" not in why(9, 4, "figure-5")
    assert "32 bits a value, bitmap, vectors (7.91 x)" in why(9, 4, "figure-5")
    assert "72 ways to count a round none come" in why(1, 100, "figure-5")
    # 17.9 / 12: a round of one model is the same in both figures, however it is counted.
    assert "rounds that differ 1.49-fold" in why(5, 5, "figure-6")
    assert "were not played" in why_bytes(
        {}, "figure-5", paired([run_of("secagg", 5), run_of("sparse", 5)])[0]
    )


@pytest.mark.parametrize(("rounds", "seconds"), [((10, 10), 2.0), ((11, 10), 8.0), ((19, 20), 0.8)])
def test_a_line_says_how_long_training_would_have_to_take(rounds, seconds):
    """Of a round: 4 s for secagg and 3 s for sparse, and 1 s of training for both."""
    (runs,) = paired(
        [
            run_of(name, count, modelled_seconds=(each + 1) * count)
            for name, count, each in zip(("secagg", "sparse"), rounds, (4, 3), strict=True)
        ]
    )

    told = why_time("figure-6", runs)

    ratio = rounds[0] / rounds[1]
    assert ratio * (seconds + 4) / (seconds + 3) == pytest.approx(1.2)
    assert "trains for 1 s of a round here, the protocols take 4 and 3 s" in told
    assert f"it is 1.2 x with {seconds:.2g} s of training" in told


def test_no_training_makes_a_factor_that_the_protocols_and_rounds_do_not_enclose():
    (runs,) = paired([run_of(name, 10, modelled_seconds=20.0) for name in ("secagg", "sparse")])

    assert "by formula 1.2 x is out of reach with any other time" in why_time("figure-6", runs)


@pytest.mark.parametrize(
    ("sparse_seconds", "verdict"), [(50.0, DIFFERS), (5 / 6 * 100, MATCHES), (None, UNDECIDED)]
)
def test_a_modelled_time_is_judged_by_its_interval(sparse_seconds, verdict):
    """The paper has 1.2: here it is 2.0 and 1.2 with three seeds, and 2.0 with one."""
    results = [
        Result(run.setting, run.found | {"bytes_up_total": 1.0})
        for seed in range(3 if sparse_seconds else 1)
        for name, seconds in (("secagg", 100.0 + seed), ("sparse", (sparse_seconds or 50) + seed))
        for like in [{"seed": seed, "devices": 100, "partition": "shards"}]
        for run in [run_of(name, 10, modelled_seconds=seconds, **like)]
    ]

    (line,) = (
        one
        for one in ARTEFACTS["sparse-secagg/figure-6"].lines(results)
        if one.what.endswith("modelled time") and one.paper
    )

    assert line.verdict == verdict
    assert (verdict == DIFFERS) == ("how long its devices trained" in line.why)


def test_readings_are_shown_where_rounds_were_played():
    training = [run_of("secagg", 5), run_of("sparse", 5)]
    runs = paired(training)

    shown = lines(
        [round_of("secagg"), round_of("sparse"), round_of("sparse", "gaps"), *training],
        "figure-5",
        runs,
        runs,
    )

    assert any("64 bits a value, bitmap, vectors" in line.what for line in shown)
    assert any(line.what.startswith("modelled time, 2nn, N = 100") for line in shown)
    assert {SHOWN} == {line.verdict for line in shown}
    assert lines(training, "figure-5", runs, runs) == []


def test_accuracy_lost_is_that_of_the_same_rounds_seed_by_seed():
    def trained(partition, accuracy, **setting):
        like = {"partition": partition, "devices": 100, **setting}
        for protocol in ("secagg", "sparse"):
            run = run_of(protocol, len(accuracy), modelled_seconds=9.0, **like)
            yield Result(run.setting, run.found | {"accuracy": accuracy, "bytes_up_total": 1.0})

    def without_target(accuracy, **setting):
        *_, result = trained("shards", accuracy, **setting)
        return Result(
            {name: value for name, value in result.setting.items() if name != "target"},
            result.found,
        )

    results = [
        # Where a run stops at its target is no loss.
        *trained("shards", [0.80, 0.90, 0.93, 0.94]),
        *trained("shards", [0.80, 0.90, 0.94], seed=1),
        *trained("iid", [0.90, 0.95, 0.97]),
        *trained("iid", [0.90, 0.97], seed=1),
        *trained("iid", [0.90, 0.97], seed=2),
        without_target([0.80, 0.90, 0.93, 0.94]),
        without_target([0.80, 0.94, 0.95, 0.96], seed=1),
        without_target([0.80], seed=2),
    ]

    (line,) = (
        one for one in ARTEFACTS["sparse-secagg/figure-6"].lines(results) if "lost" in one.what
    )

    assert line.ours.startswith("3.5 points (")  # 4 and 3
    assert line.ours.endswith("2 seeds)")
    assert line.verdict == UNDECIDED
    panels = ARTEFACTS["sparse-secagg/figure-6"].draw(results)
    assert [len(xs) for xs, _ in panels[0].curves.values()] == [4, 4]


def test_rounds_are_judged_where_the_paper_speaks_of_them():
    def lines_of(id, *rounds):
        results = [
            Result(run.setting, run.found | {"bytes_up_total": 1.0})
            for seed, counts in enumerate(rounds)
            for name, count in zip(("secagg", "sparse"), counts, strict=True)
            for run in [run_of(name, count, modelled_seconds=9.0, seed=seed)]
        ]
        return next(one for one in ARTEFACTS[id].lines(results) if one.what.endswith("rounds"))

    seeds = [(20 + seed, 23 + seed + seed % 2) for seed in range(5)]
    assert lines_of("sparse-secagg/figure-3", *seeds).verdict == MATCHES
    assert lines_of("sparse-secagg/figure-3", seeds[0]).verdict == SHOWN
    assert lines_of("sparse-secagg/figure-5", *seeds).verdict == SHOWN


def overlap_of(partition, rounds, first, last, **changed):
    like = {"algorithm": "top-k", "dataset": "mnist", "model": "2nn", "devices": 30}
    found = {"overlap": [first] * (rounds - 1) + [last]}
    return Result({**like, "partition": partition, "most_rounds": rounds, **changed}, found)


def test_the_nearest_reading_of_an_overlap_is_told_from_longer_runs_and_from_the_line_itself():
    step = {"epochs": None, "steps": 1}
    results = [
        overlap_of("iid", 6, 0.76, 0.40),
        overlap_of("iid", 6, 0.35, 0.21, **step),
        overlap_of("iid", 60, 0.35, 0.23, **step),
    ]
    compare = ARTEFACTS["sparse-secagg/figure-2"].lines

    line, *others = compare(results)

    assert (line.verdict, len(others)) == (OPEN, 2)
    assert "2 other readings were tried" in line.why
    assert "gradients of one step, 6 rounds (35.0% to 21.0%)" in line.why
    assert "were not tried" in compare(results[:1])[0].why
    assert compare([overlap_of("iid", 6, 0.30, 0.11)])[0].verdict == MATCHES


def test_locks_behind_uniform_is_open_with_every_change_that_was_tried():
    def trained(algorithm, epsilon, accuracy, **more):
        found = {"last_accuracy": [accuracy + 0.001 * seed for seed in range(5)], "bytes_up": 1e6}
        found["last_accuracy"][0] += 0.002 * (algorithm != "dp-fedavg")
        setting = {"algorithm": algorithm, "epsilon": epsilon, "rounds": 50, **more}
        return Result(setting, found | {"accuracy": [accuracy]})

    uneven = {"partition": "dirichlet:0.1"}
    results = [
        *(trained("dp-fedavg", epsilon, 0.8) for epsilon in (None, 50.0, 10.0)),
        *(trained("locks", epsilon, 0.7) for epsilon in (None, 50.0, 10.0)),
        trained("locks-free-norms", 10.0, 0.8),
        trained("dp-fedavg", 10.0, 0.6, **uneven),
        trained("locks", 10.0, 0.65, **uneven),
        trained("locks", 10.0, 0.2, variant="local"),
    ]

    lines = {line.what: line for line in ARTEFACTS["locks/figure-1"].lines(results)}

    after = "accuracy after 50 rounds, uniform and locks"
    assert lines[f"proven epsilon 50: {after}"].verdict == OPEN
    assert lines[f"proven epsilon 50: {after}"].why == "nothing was changed (--scale more)"
    told = lines[f"proven epsilon 10: {after}"].why
    assert "ahead of uniform: locks, dirichlet:0.1: +0.0504" in told
    assert "not distinguishable from it: norms without noise, at no cost: +0.0004" in told
    assert "behind it as well: locks, noise of users: -0.6" in told


def test_the_readings_of_multipliers_use_the_accountants_of_the_suite():
    found = multipliers.run({"sampling": "poisson", "per_round": 20}, None)

    row = next(r for r in found["rows"] if r["conversion"] == "2020" and r["delta"] == 1e-5)
    for rounds, epsilon in zip(row["rounds"], row["epsilon_of_half"], strict=True):
        expected = sampling.poisson_gaussian_rdp(0.2, 0.5, rounds, 1e-5)
        assert epsilon == pytest.approx(expected, rel=1e-3)
        assert sampling.poisson_gaussian_rdp(0.2, 1.325, rounds, 1e-5) < 10
        assert sampling.poisson_gaussian_rdp(0.2, 1.315, rounds, 1e-5) >= 10


def test_a_reading_that_gives_both_multipliers_is_possible_and_no_match():
    def result(digits):
        row = {"conversion": "2020", "delta": 1e-5, "rounds": [24]}
        rows = [{**row, "epsilon_of_half": [50.1], "digits": [digits]}]
        return Result({"sampling": "fixed", "per_round": 20}, {"rows": rows})

    both = multipliers.compare([result(2)])[-1]
    assert (both.verdict, both.ours) == (UNDECIDED, "1")
    assert "fixed size, 20 of 100 clients, 24 rounds at delta 1e-05 (2020)" in both.why
    nearly = multipliers.compare([result(1)])[-1]
    assert nearly.verdict == UNDECIDED
    assert nearly.why.endswith("with two digits for none")
    assert multipliers.compare([result(0)])[-1].verdict == DIFFERS


def test_overlaps_of_layers_are_those_of_their_own_coordinates(monkeypatch):
    pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    images = generator.normal(size=(60, 1, 8, 8)).astype(np.float32)
    labels = generator.integers(0, 3, 60)
    data = SimpleNamespace(
        train_inputs=images, train_labels=labels, shape=(1, 8, 8), classes=3, writers=None
    )
    monkeypatch.setattr(datasets, "load", lambda name, data_dir, seed: data)
    setting = {"devices": 3, "partition": "iid", "model": "softmax", "rounds": 2}
    local = {"epochs": None, "steps": 1}

    found = overlaps.by_layer(
        {**setting, "local": local, "inputs": "raw"}, SimpleNamespace(data_dir=None)
    )["overlaps"]

    # The model has one tensor: its overlap is that of the whole.
    whole, layer = found.values()
    assert whole == layer
    assert len(whole) == 2
    assert all(0 < value <= 1 for value in whole)


def test_further_settings_are_compared_as_far_as_they_were_run(tmp_path):
    scales = {
        "paper": Scale("all", [{"a": 1}], 1),
        MORE: Scale("others", [{"a": 1}, {"a": 2}, {"a": 3}], 0.1),
    }
    artefact = Artefact("some/table", "Numbers", scales)
    store = Store(tmp_path, "some")
    store.add({"a": 3}, {"b": 3}, {})
    assert store.results(artefact) is None

    store.add({"a": 1}, {"b": 1}, {})

    scale, results = store.results(artefact)
    assert scale == "paper"
    assert [one.found["b"] for one in results] == [1, 3]
    # They are never run unless asked for, however short.
    assert artefact.scale(0.5) == "paper"


def test_a_line_whose_reason_is_not_known_is_open():
    line = Line("x", "up", "down", OPEN, "three things were tried")

    assert verdict(line) == "open: three things were tried"
    assert tally([line, Line("y", "up", "up", MATCHES)]) == "1 of 2 match, 1 open"


@pytest.mark.parametrize("id", ARTEFACTS)
def test_further_settings_are_never_chosen_by_time(id):
    assert MORE not in (ARTEFACTS[id].scale(0), ARTEFACTS[id].scale(math.inf))
