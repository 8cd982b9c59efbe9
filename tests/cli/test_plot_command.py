"""`hpcfl plot` on results files of real runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from commandline import hpcfl, invoke, refusal

from hpcfl.errors import HpcflError, UsageError
from hpcfl.plots import KINDS, style

pytest.importorskip("torch")

# Epsilon takes private training, a timeline times of ranks; see tests/plots.
OF_ANY_TRAINING = [kind for kind in KINDS if kind not in ("epsilon", "timeline")]


def plot(*arguments):
    return invoke("plot", *arguments)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    trained, bench = folder / "trained.h5", folder / "bench.h5"
    train = hpcfl(
        *("train", "fedavg", "--devices", 5, "--rounds", 2, "--partition", "dirichlet:0.3"),
        *("--output", trained, "--json"),
    )
    assert train.returncode == 0, train.stderr
    job = hpcfl("bench", "fedavg", "--devices", 3, "--dim", 10, "--output", bench)
    assert job.returncode == 0, job.stderr
    (folder / "damaged.h5").write_bytes(b"nothing")
    # A training run, its rounds as it printed them, a run without training, and a damaged file.
    return SimpleNamespace(
        folder=folder, trained=trained, rounds=json.loads(train.stdout)["rounds"]
    )


@pytest.fixture
def drawn(monkeypatch):
    """Return the list that figures go to, instead of to files."""
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, *_: figures.append(figure))
    return figures


@pytest.mark.parametrize(
    ("kind", "ending", "start"),
    [
        *((kind, "png", b"\x89PNG") for kind in OF_ANY_TRAINING),
        ("partition", "svg", b"<?xml"),
        ("partition", "pdf", b"%PDF"),
    ],
)
def test_a_training_run_is_drawn(results, tmp_path, kind, ending, start):
    path = tmp_path / f"figure.{ending}"
    result = plot(results.trained, "--kind", kind, "--output", path)

    assert (result.exit_code, result.stdout, result.stderr) == (0, f"Figure: {path}\n", "")
    assert path.read_bytes().startswith(start)


def test_options_reach_the_figure(results, drawn):
    """What is drawn is tested with the figures."""
    options = ["--against", "bytes", "--target-accuracy", "0.5", "--log-x"]
    assert plot(results.trained, "--kind", "accuracy", *options).exit_code == 0
    (axes,) = drawn[0].axes
    line, target = axes.lines
    with h5py.File(results.trained) as file:
        sent = file["rounds/bytes_up"][()].sum(axis=(1, 2)) / 1e3

    assert axes.get_xlabel() == "sent up by all devices, kB"
    np.testing.assert_allclose(line.get_xdata(), sent.cumsum())
    assert list(line.get_ydata()) == [figures["accuracy"] for figures in results.rounds]
    assert list(target.get_ydata()) == [0.5, 0.5]
    assert axes.get_xscale() == "log"


def test_a_figure_is_called_by_its_kind_unless_told(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = hpcfl("plot", results.trained, "--kind", "partition")

    assert (job.returncode, job.stdout, job.stderr) == (0, "Figure: partition.png\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["partition.png"]


def test_files_that_cannot_be_drawn_are_left_out_with_a_warning(results, drawn):
    result = plot(results.folder, "--kind", "accuracy")

    assert result.exit_code == 1  # a file could not be read
    assert isinstance(result.exception, SystemExit)
    assert len(drawn[0].axes[0].lines) == 1
    bench, damaged = result.stderr.splitlines()
    assert bench.endswith("bench.h5 has no training: hpcfl train writes it; left out")
    assert "damaged.h5 cannot be read as HDF5" in damaged


def test_runs_are_chosen_renamed_and_drawn_in_a_size_and_style(results, drawn, tmp_path):
    (tmp_path / "own.mplstyle").write_text("font.size: 11\n")
    frame = ["--size", "3.3x2.2", "--style", tmp_path / "own.mplstyle", "--title", "Digits"]
    options = [*frame, "--label", "fedavg=FedAvg", "--where", "devices=5", "--kind", "accuracy"]
    result = plot(results.trained, results.folder / "bench.h5", *options)

    assert result.stderr == ""  # nothing is said of what was not asked for
    (figure,) = drawn
    assert list(figure.get_size_inches()) == [3.3, 2.2]
    assert figure.get_suptitle() == "Digits"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg, N = 5"]
    plot(results.trained, "--kind", "accuracy", "--title", "", "--size", "column")
    assert (drawn[1].get_suptitle(), drawn[1].get_figwidth()) == ("", 3.33)


def test_every_run_is_drawn_and_one_without_training_is_no_failure(results, drawn, tmp_path):
    again = shutil.copy(results.trained, tmp_path / "again.h5")
    files = results.trained, again, results.folder / "bench.h5"
    result = plot(*files, "--kind", "accuracy", "--no-pool")

    assert result.exit_code == 0
    assert len(result.stderr.splitlines()) == 1
    assert len(drawn[0].axes[0].lines) == 2
    partition = plot(results.trained, again, "--kind", "partition")
    assert isinstance(partition.exception, UsageError)
    assert "there are 2: name one file" in str(partition.exception)


@pytest.mark.parametrize(
    ("status", "words"), [("failed", "that failed"), ("running", "has not ended or was killed")]
)
def test_a_run_that_did_not_end_well_is_drawn_with_a_warning(
    results, drawn, tmp_path, status, words
):
    path = shutil.copy(results.trained, tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["status"] = status
    result = plot(path, "--kind", "accuracy")

    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {path} is of a run")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == len(drawn) == 1


def test_nothing_to_draw_is_an_error(results, tmp_path):
    bench, damaged = results.folder / "bench.h5", results.folder / "damaged.h5"
    both = plot(bench, damaged, "--kind", "accuracy", "--output", tmp_path / "a.png")
    one = plot(damaged, "--kind", "accuracy", "--output", tmp_path / "a.png")

    assert isinstance(both.exception, UsageError)
    assert str(both.exception) == "none of the 2 files can be drawn"
    assert type(one.exception) is HpcflError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "options", "sentence"),
    [
        ("bench.h5", "accuracy", "has no training: hpcfl train writes it"),
        ("trained.h5", "partition --output a.gif", "a.gif does not end in .png, .svg or .pdf"),
        ("trained.h5", "partition --output damaged.h5/a.png", "cannot write damaged.h5/a.png"),
        ("trained.h5", "partition --log-x", "--log-x has no meaning for --kind partition"),
        (
            "trained.h5",
            "accuracy --target-accuracy 90",
            "--target-accuracy is 90.0; it must be above 0 and at most 1",
        ),
        ("trained.h5", "accuracy --size 3x", "--size is '3x'; give column or page, or width and"),
        ("trained.h5", "accuracy --size 0.1x90", "in inches, from 1 to 50"),
        ("trained.h5", "accuracy --style nonsense", "there is no style 'nonsense'"),
        ("trained.h5", "accuracy --style damaged.h5", "damaged.h5 has no settings of matplotlib"),
        ("trained.h5", "accuracy --style box", "chosen by --spread"),
        ("trained.h5", "accuracy --label fedavg", "give NAME=TEXT"),
        ("trained.h5", "accuracy --where devices=6", "no run has devices=6: there are 5"),
        ("trained.h5", "nonsense", "'--kind': 'nonsense' is not one of 'partition', 'accuracy'"),
        ("nothing.h5", "accuracy", "there is no file or folder"),
    ],
)
def test_wrong_use_of_plot_is_one_sentence(results, monkeypatch, file, options, sentence):
    monkeypatch.chdir(results.folder)

    assert sentence in refusal("plot", file, "--kind", *options.split())


def test_without_matplotlib_the_user_is_told_what_to_install(results):
    code = "import sys; sys.modules['matplotlib'] = None; from hpcfl.cli import main; main()"
    job = subprocess.run(
        [sys.executable, "-c", code, "plot", results.trained, "--kind", "partition"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert job.returncode == 2
    assert job.stderr == "Error: a figure needs matplotlib: pip install 'hpcfl[plot]'\n"


def test_help_names_every_kind_and_imports_none():
    text = " ".join(plot("--help").stdout.split())
    for name, kind in KINDS.items():
        assert f"{name}: {kind.what}" in text
    code = f"""
import sys, hpcfl.cli.plot
assert not {{"numpy", "matplotlib", "h5py", *{[k.home for k in KINDS.values()]}}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
