"""What training reached, in launches of one configuration, and what it took."""

import json
from functools import partial

import numpy as np
import pytest
from commandline import invoke
from run_files import CONFIG, PHASES, new_writer, simple_record

from hpcfl.results import pooling
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import load

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


report = partial(invoke, "report")


def test_training_with_several_seeds_is_one_row_with_how_far_it_varies(tmp_path):
    for seed, last in enumerate([0.7, 0.9, 0.8]):
        write(tmp_path / f"{seed}.h5", [0.1, 0.6, last], seed=seed, target_accuracy=0.75)
    write(tmp_path / "longer.h5", [0.1, 0.6, 0.8], seed=3, rounds=20, target_accuracy=0.75)
    found = json.loads(report(tmp_path, "--json").stdout)["runs"]
    shown = report(tmp_path).stdout

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
