"""A training that was resumed is one curve."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from commandline import hpcfl

from hpcfl.plots import accuracy, chosen, resumed
from hpcfl.results import load

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a training in one go, and its parts: 3 rounds, then from round 2 on, then from 4."""
    folder = tmp_path_factory.mktemp("resumed")

    def train(name, rounds, *options):
        path = folder / f"{name}.h5"
        words = ("train", "fedavg", "--devices", 3, "--rounds", rounds, "--checkpoint-every", 2)
        job = hpcfl(*words, "--output", path, *options)
        assert job.returncode == 0, job.stderr
        return load(path)

    whole = train("whole", 6)
    parts = [train("a", 3)]
    parts.append(train("b", 4, "--resume", folder / "a.checkpoint.npz"))
    parts.append(train("c", 6, "--resume", folder / "b.checkpoint.npz"))
    return whole, parts


def test_parts_of_a_training_are_joined_where_one_went_on_from_the_other(trained):
    whole, (a, b, c) = trained
    for parts in ([a, b, c], [c, a, b]):
        (joined,) = resumed.join(parts)
        assert joined.rounds == 6
        assert not resumed.resumed(joined)
        np.testing.assert_array_equal(joined.bytes_up, whole.bytes_up)
        for name in ("accuracy", "bytes_up_total"):
            np.testing.assert_array_equal(joined.training[name], whole.training[name])
    axes = chosen("accuracy", {}).draw([a, b, c]).axes[0]
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_ydata(), whole.training["accuracy"])
    assert list(line.get_xdata()) == list(range(6))


def test_a_part_without_its_beginning_says_so(trained):
    _, (a, b, c) = trained
    (joined,) = resumed.join([b, c])

    assert (joined.rounds, resumed.resumed(joined)) == (4, True)
    (text,) = accuracy.draw([joined]).legends[0].get_texts()
    assert text.get_text() == "fedavg, N = 3, rounds since resumed"
    assert resumed.join([a, c]) == [a, c]


def test_runs_that_did_not_go_on_from_each_other_stay_apart(trained, tmp_path):
    whole, (a, b, _) = trained
    shutil.copy(whole.path, tmp_path / "a.h5")
    other = replace(load(tmp_path / "a.h5"), config=whole.config | {"seed": 7})
    more = replace(whole, path=a.path)  # it has more rounds than what went on from it

    assert resumed.join([other, b]) == [other, b]
    assert [run.rounds for run in resumed.join([more, b])] == [6, 4]
    circle = replace(a, config=a.config | {"resume": "b.checkpoint.npz"})
    assert resumed.join([circle, b])
