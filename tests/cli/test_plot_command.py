"""`hpcfl plot` on results files of real runs."""

from __future__ import annotations

from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from commandline import invoke, told

from hpcfl.errors import HpcflError
from hpcfl.plots import KINDS, style

pytest.importorskip("torch")


def plot(*arguments):
    return invoke("plot", *arguments)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a folder with a training, a benchmark, and a damaged file."""
    folder = tmp_path_factory.mktemp("results")
    trained, bench = folder / "trained.h5", folder / "bench.h5"
    learn = ("fedavg", "--devices", 5, "--rounds", 2, "--partition", "dirichlet:0.3")
    told("train", *learn, "--output", trained)
    told("bench", "fedavg", "--devices", 3, "--dim", 10, "--output", bench)
    (folder / "damaged.h5").write_bytes(b"nothing")
    return SimpleNamespace(folder=folder, trained=trained, bench=bench)


@pytest.fixture
def drawn(monkeypatch):
    """Return the list that figures go to, instead of to files."""
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, *_: figures.append(figure))
    return figures


def test_a_training_run_is_drawn(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in KINDS:
        if kind != "timeline":
            done = plot(results.trained, "--kind", kind)
            assert (done.exit_code, done.stdout, done.stderr) == (0, f"Figure: {kind}.png\n", "")
            assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_options_reach_the_figure(results, drawn):
    """What is drawn is tested with the figures."""
    options = ["--against", "bytes", "--size", "column", "--where", "devices=5"]
    result = plot(results.trained, results.bench, "--kind", "accuracy", *options)
    (axes,) = drawn[0].axes
    with h5py.File(results.trained) as file:
        sent = file["rounds/bytes_up"][()].sum(axis=(1, 2))

    assert result.stderr == ""  # nothing is said of what was not asked for
    np.testing.assert_allclose(axes.lines[0].get_xdata(), sent.cumsum())
    assert drawn[0].get_size_inches()[0] == 3.33


def test_files_that_cannot_be_drawn_are_left_out_with_a_warning(results, drawn, tmp_path):
    result = plot(results.folder, "--kind", "accuracy")

    assert result.exit_code == 1  # a file could not be read
    assert len(drawn[0].axes[0].lines) == 1
    damaged, bench = result.stderr.splitlines()
    assert bench.endswith("bench.h5 has no training: hpcfl train writes it; left out")
    assert "damaged.h5" in damaged
    both = plot(results.bench, results.folder / "damaged.h5", "--kind", "accuracy")
    assert isinstance(both.exception, HpcflError)
    assert str(both.exception) == "none of the 2 files can be used"
    one = plot(results.folder / "damaged.h5", "--kind", "accuracy")
    assert isinstance(one.exception, HpcflError)
