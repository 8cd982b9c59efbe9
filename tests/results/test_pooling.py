"""Launches of one configuration as repeats."""

import json
from dataclasses import replace

import numpy as np
import pytest
from commandline import invoke
from run_files import CONFIG, PHASES, new_writer, simple_record, write_seconds

from hpcfl.results import pooling
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import load
from hpcfl.results.statistics import median_interval

LINK = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=1)
EIGHT = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]


def run(folder, name, seconds=EIGHT, **options):
    return load(write_seconds(folder / f"{name}.h5", seconds, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 7},
        {"rounds": 99, "warmup": 9, "max_rounds": 100, "rel_ci": 0.1, "max_seconds": 3.0},
        {"save_aggregate": "sum.npy", "status": "failed"},
        {"environment": {"host_name": "elsewhere", "hosts": ["c", "d"], "before_load_1min": 3.0}},
    ],
)
def test_what_leaves_a_round_as_it_is_makes_repeats(tmp_path, options):
    pools = pooling.group([run(tmp_path, "a"), run(tmp_path, "b", **options)])

    assert [[r.path.stem for r in pool.runs] for pool in pools] == [["a", "b"]]


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "sparse"},
        {"dim": 11},
        {"uplink_mbps": 1.0},
        {"an_option_of_a_later_version": 1},
        {"environment": {"cpu_model": "another"}},
        {"environment": {"host_ranks": [3, 3]}},
        {"environment": {"git_commit": "abc"}},
        {"environment": {"fault_tolerance": "ulfm"}},
        {"environment": {"binding": "hardware threads a rank: 1; ranks a thread: at most 1"}},
    ],
)
def test_what_changes_a_round_or_the_machine_keeps_runs_apart(tmp_path, options):
    runs = [run(tmp_path, "a"), run(tmp_path, "b", **options), run(tmp_path, "c")]
    pools = pooling.group(runs)

    assert [[r.path.stem for r in pool.runs] for pool in pools] == [["a", "c"], ["b"]]
    assert [len(pool.runs) for pool in pooling.apart(runs)] == [1, 1, 1]
    found = pooling.differences(pooling.configuration, *runs[:2])
    found |= pooling.differences(pooling.machine, *runs[:2])
    assert list(found) == list(options.get("environment", options))
    # Nor are runs without warm-up repeats, or those that trained.
    for other in ({"config": runs[0].config | {"warmup": 0}}, {"training": {"loss": np.zeros(8)}}):
        assert len(pooling.group([runs[0], replace(runs[0], **other)])) == 2


TCP = {"OMPI_MCA_btl": "tcp,self"}


def resumed(plain, *first_rounds, **facts):
    later = [plain.environment | facts | {"first_round": first} for first in first_rounds]
    return replace(plain, resumed=later)


def test_a_run_that_was_resumed_on_another_machine_is_no_repeat(tmp_path):
    plain = run(tmp_path, "a", environment={"cpu_model": "one"})
    alike, unlike = resumed(plain, 3), resumed(plain, 3, cpu_model="another")

    assert [len(pool.runs) for pool in pooling.group([plain, alike, unlike])] == [2, 1]
    disturbed = resumed(plain, 3, before_load_1min=50.0, cores_usable=2)
    assert pooling.Pool((disturbed,)).summary(LINK).warnings
    both = ["one", "another"]
    assert pooling.differences(pooling.machine, plain, unlike) == {"cpu_model": ("one", both)}


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"environment_variables": TCP}, "OMPI_MCA_btl"),
        ({"environment_variables": {"I_MPI_FABRICS": "ofi"}}, "I_MPI_FABRICS"),
        # Of one host only.
        ({"host_facts": {"cores_usable": [2, 64]}}, "cores_usable"),
        ({"host_facts": {"environment_variables": [{}, TCP]}}, "environment_variables"),
    ],
)
def test_what_steers_mpi_keeps_runs_apart_by_its_own_name(tmp_path, facts, name):
    runs = [run(tmp_path, "a"), run(tmp_path, "b", environment=facts)]

    assert len(pooling.group(runs)) == 2
    assert list(pooling.differences(pooling.machine, *runs)) == [name]


def test_a_pool_has_all_rounds_and_their_interval(tmp_path):
    runs = [run(tmp_path, name, warmup=9.0 + i) for i, name in enumerate("abc")]
    (pool,) = pooling.group(runs)
    interval = median_interval(EIGHT * 3)
    summary = pool.summary(LINK)

    assert summary["launches"] == 3
    assert summary.files == tuple(str(r.path) for r in runs)
    assert (summary["rounds_measured"], summary["rounds_warmup"]) == (24, 3)
    assert summary["round_seconds_median"] == pytest.approx(1.35)
    assert (summary["round_seconds_low"], summary["round_seconds_high"]) == (
        interval.low,
        interval.high,
    )
    # The slowest launch's; equal launches do not differ.
    assert summary["first_round_seconds"] == 11.0
    assert summary["launches_p_value"] == pytest.approx(1)
    assert summary.warnings == ()


def test_launches_that_differ_are_told_of(tmp_path):
    slow = [seconds + 0.6 for seconds in EIGHT]
    pools = pooling.group(
        [run(tmp_path, "a"), run(tmp_path, "b", slow), run(tmp_path, "c", [], status="failed")]
    )
    summary = pools[0].summary(LINK)

    # The launch without a measured round has no say in it.
    assert summary["launches"] == 3
    assert summary["status"] == "failed"
    assert summary["launches_p_value"] < 0.01
    assert "launches differ more than their rounds do" in summary.warnings[0]


def test_report_shows_repeats_as_one_row(tmp_path):
    for name in "abc":
        run(tmp_path, name, environment={"transport": "mpi"})
    run(tmp_path, "other", protocol="sparse")
    pooled = json.loads(invoke("report", tmp_path, "--json").stdout)
    text = invoke("report", tmp_path).stdout

    assert [r["launches"] for r in pooled["runs"]] == [3, 1]
    interval = median_interval(EIGHT * 3)
    assert pooled["runs"][0]["round_seconds_low"] == interval.low
    assert "3 repeats: a.h5, b.h5, c.h5; 24 measured rounds, 95 % interval" in text
    three = invoke("report", *(tmp_path / f"{n}.h5" for n in "abc")).stdout
    assert "repeats       3 launches" in three


# What training reached, and what it took

FIGURES = ("accuracy", "bytes_up_total", "modelled_seconds", "epsilon_proven")


def write(path, accuracies, **config):
    """Write a training run, of which a round sends 660 B."""
    options = {"algorithm": "fedavg", "rounds": 9, "resume": None, "target_accuracy": None}
    rounds = max(1, len(accuracies))
    with new_writer(
        path, config=CONFIG | options | config, phases=PHASES, rounds=rounds, training=FIGURES
    ) as writer:
        for number, accuracy in enumerate(accuracies, 1):
            record = simple_record()
            sent = float(record.bytes_up.sum()) * number
            writer.append(record, dict(zip(FIGURES, (accuracy, sent, 0.5, np.nan), strict=True)))
    return load(path)


def test_training_with_several_seeds_is_one_row_with_how_far_it_varies(tmp_path):
    for seed, last in enumerate([0.7, 0.9, 0.8]):
        write(tmp_path / f"{seed}.h5", [0.1, 0.6, last], seed=seed, target_accuracy=0.75)
    write(tmp_path / "longer.h5", [0.1, 0.6, 0.8], seed=3, rounds=20, target_accuracy=0.75)
    found = json.loads(invoke("report", tmp_path, "--json").stdout)["runs"]
    shown = invoke("report", tmp_path).stdout

    assert [run["launches"] for run in found] == [3, 1]
    reached = found[0]
    assert (reached["accuracy"], reached["accuracy_least"]) == (0.8, 0.7)
    # One of the three is below the target, so there is no number of rounds for all.
    assert (reached["target"], reached["launches_at_target"]) == (0.75, 2)
    assert reached["rounds_to_target"] is None
    assert found[1]["rounds_to_target"] == 3
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("1  "))
    assert " ".join(row).find("0.8 0.7 0.9") > 0
    assert found[0]["config"]["seed"] == [0, 1, 2]


def test_what_the_target_took_is_counted_from_the_first_round(tmp_path):
    run = write(tmp_path / "a.h5", [0.1, 0.5, 0.4, 0.6])
    ((_, near),) = pooling.summarised([pooling.Pool((run,))], target=0.5)
    link = LinkModel(uplink_mbps=8, downlink_mbps=16, latency_ms=11)
    ((_, far),) = pooling.summarised([pooling.Pool((run,))], target=0.5, latency_ms=11)

    assert near["rounds_to_target"] == 2
    assert near["bytes_to_target"] == 2 * 660
    assert near["seconds_to_target"] == pytest.approx(1.0)
    # What devices trained stays; the protocol's part is that of the other link.
    slower = run.modelled_seconds(link).sum(axis=1) - run.modelled_seconds(run.link()).sum(axis=1)
    assert slower[0] == pytest.approx(0.04)  # two phases move up and down, 10 ms each way
    assert far["seconds_to_target"] == pytest.approx(1.0 + 2 * slower[0])
    assert near["epsilon_proven"] is None
