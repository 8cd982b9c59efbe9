"""A training that was resumed is one curve."""

import numpy as np
import pytest
from commandline import hpcfl

from hpcfl.plots import chosen
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


def test_a_resumed_training_is_one_curve_in_whatever_order_its_files_are_given(trained):
    whole, (a, b, c) = trained
    for parts in ([a, b, c], [c, a, b]):
        axes = chosen("accuracy", {}).draw(parts).axes[0]
        (line,) = axes.lines
        np.testing.assert_array_equal(line.get_ydata(), whole.training["accuracy"])
        assert list(line.get_xdata()) == list(range(6))


def test_a_training_without_its_beginning_says_so(trained):
    _, (_, b, c) = trained
    (text,) = chosen("accuracy", {}).draw([b, c]).legends[0].get_texts()

    assert text.get_text() == "fedavg, N = 3, rounds since resumed"
