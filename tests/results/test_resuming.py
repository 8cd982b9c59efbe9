"""Training in several files, as one run."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from commandline import hpcfl
from run_files import CONFIG, ENVIRONMENT, PHASES, new_writer, simple_record

from hpcfl import api
from hpcfl.cli.report import command
from hpcfl.results import pooling
from hpcfl.results.linkmodel import LinkModel
from hpcfl.results.reader import find, load
from hpcfl.results.resuming import joined

FIGURES = ("accuracy", "bytes_up_total", "modelled_seconds", "epsilon_proven")


def write(path, accuracies, before=0, **config):
    """Write a training run; `before` is how many rounds it went on from. A round sends 780 B."""
    options = {"algorithm": "fedavg", "rounds": 9, "resume": None, "target_accuracy": None}
    environment = ENVIRONMENT | {"cpu": path.stem}
    with new_writer(
        path,
        config=CONFIG | options | config,
        environment=environment,
        phases=PHASES,
        rounds=max(1, len(accuracies)),
        training=FIGURES,
    ) as writer:
        for number, accuracy in enumerate(accuracies, before + 1):
            record = simple_record()
            sent = float(record.bytes_up.sum()) * number
            writer.append(record, dict(zip(FIGURES, (accuracy, sent, 0.5, np.nan), strict=True)))
    return load(path)


def report(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_a_resumed_run_is_one_with_what_it_went_on_from(tmp_path):
    first = write(tmp_path / "a.h5", [0.1, 0.2, 0.3, 0.4])
    second = write(tmp_path / "b.h5", [0.35, 0.45], 3, resume="there/a.checkpoint.npz", rounds=12)
    third = write(tmp_path / "c.h5", [0.5], 5, resume="b.checkpoint.npz")
    other = write(tmp_path / "other.h5", [0.9])

    for order in ([first, second, third, other], [other, third, second, first]):
        found = joined(order)
        (whole,) = [run for run in found if run.path == first.path]
        assert len(found) == 2
        # The fourth round of the first file was played again.
        assert whole.training["accuracy"].tolist() == [0.1, 0.2, 0.3, 0.35, 0.45, 0.5]
        assert np.diff(whole.training["bytes_up_total"]).tolist() == [60 + 600] * 5
        assert whole.rounds == len(whole.bytes_up) == len(whole.survived) == 6
        assert [*whole.launches] == [0, 3, 5]
        assert [one["cpu"] for one in whole.launches.values()] == ["a", "b", "c"]
    assert [len(pool.runs) for pool in pooling.group([first, second])] == [1]
    assert [pool.run.rounds for pool in pooling.apart([first, second])] == [5]


def test_of_two_that_went_on_from_one_checkpoint_the_later_one_counts(tmp_path):
    first = write(tmp_path / "a.h5", [0.1, 0.2, 0.3, 0.4])
    killed = write(tmp_path / "b.h5", [0.35, 0.45], 3, resume="a.checkpoint.npz")
    again = write(tmp_path / "c.h5", [0.5, 0.6, 0.7], 3, resume="a.checkpoint.npz")
    again = replace(again, started="2099-01-01T00:00:00Z")

    for order in ([first, killed, again], [again, killed, first]):
        (whole,) = joined(order)
        assert whole.training["accuracy"].tolist() == [0.1, 0.2, 0.3, 0.5, 0.6, 0.7]
        assert [one["cpu"] for one in whole.launches.values()] == ["a", "c"]


def test_parts_belong_to_the_files_of_their_own_folder(tmp_path):
    folders = {}
    for name, first in (("one", 0.1), ("other", 0.2)):
        (tmp_path / name).mkdir()
        begun = write(tmp_path / name / "a.h5", [first, 0.3, 0.4])
        went_on = write(tmp_path / name / "b.h5", [first], 2, resume=f"{name}/a.checkpoint.npz")
        folders[name] = [begun, went_on]

    for order in (("one", "other"), ("other", "one")):
        found = joined([*folders[order[0]], *folders[order[1]]])
        ends = {run.path.parent.name: run.training["accuracy"][[0, -1]].tolist() for run in found}
        assert ends == {"one": [0.1, 0.1], "other": [0.2, 0.2]}


def test_parts_are_joined_under_the_names_that_merge_gives_them(tmp_path):
    for name, first in (("one", 0.1), ("other", 0.2)):
        folder = tmp_path / name
        folder.mkdir()
        write(folder / "a.h5", [first, 0.3, 0.4, 0.5])
        write(folder / "b.h5", [first, 0.6], 3, resume=f"{name}/a.checkpoint.npz")
        write(folder / "c.h5", [first], 5, resume=f"{name}/b.checkpoint.npz")
    write(tmp_path / "other/alone.h5", [0.7])
    done = hpcfl("merge", tmp_path / "one", tmp_path / "other", "--output", tmp_path / "merged")
    found = joined([load(path) for path in find(tmp_path / "merged")])

    assert done.returncode == 0, done.stderr
    assert sorted(run.training["accuracy"].tolist() for run in found) == [
        *([first, 0.3, 0.4, first, 0.6, first] for first in (0.1, 0.2)),
        [0.7],
    ]
    names = [path.name for path in find(tmp_path / "merged")]
    assert len(names) == 7
    assert "alone.h5" in names


def test_files_that_name_each_other_end_as_one(tmp_path):
    one = write(tmp_path / "a.h5", [0.1, 0.2], resume="b.checkpoint.npz")
    other = write(tmp_path / "b.h5", [0.3, 0.4], 1, resume="a.checkpoint.npz")

    assert len(joined([one, other])) == 1


@pytest.mark.parametrize(
    ("before", "options"),
    [
        (3, {"resume": "x.checkpoint.npz"}),  # of another file
        (3, {"resume": "a.checkpoint.npz", "alpha": 0.2}),  # of another training
        (9, {"resume": "a.checkpoint.npz"}),  # rounds between them are missing
        (3, {}),  # not resumed
    ],
)
def test_what_does_not_continue_a_run_stays_apart(tmp_path, before, options):
    first = write(tmp_path / "a.h5", [0.1, 0.2, 0.3, 0.4])
    second = write(tmp_path / "b.h5", [0.35, 0.45], before, **options)

    assert joined([first, second]) == [first, second]


def test_a_checkpoint_of_training_makes_one_row_and_one_curve(tmp_path):
    common = ("train", "fedavg", "--devices", "3", "--checkpoint-every", "2")
    done = hpcfl(*common, "--rounds", "3", "--output", tmp_path / "a.h5")
    checkpoint = tmp_path / "a.checkpoint.npz"
    resumed = hpcfl(
        *(*common, "--rounds", "5", "--resume", checkpoint, "--output", tmp_path / "b.h5")
    )
    assert (done.returncode, resumed.returncode) == (0, 0), done.stderr + resumed.stderr
    (run,) = json.loads(report(tmp_path, "--json").stdout)["runs"]

    assert run["rounds_total"] == 5
    (line,) = [
        line
        for line in api.load_many(tmp_path).plot("accuracy").axes[0].get_lines()
        if not line.get_label().startswith("_")
    ]
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4]


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
    assert "accuracy 0.8 [0.7, 0.9] (lowest and highest); 2 of 3 reached the target" in shown
    assert found[0]["config"]["seed"] == [0, 1, 2]
    assert len(json.loads(report(tmp_path, "--json", "--no-pool").stdout)["runs"]) == 4


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
