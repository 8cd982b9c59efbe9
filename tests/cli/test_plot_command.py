from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def hpcfl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcfl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a training run, a run without training, and a damaged file."""
    folder = tmp_path_factory.mktemp("results")
    train = ("train", "fedavg", "--devices", 5, "--rounds", 2, "--output", folder / "trained.h5")
    bench = ("bench", "fedavg", "--devices", 3, "--dim", 10, "--output", folder / "bench.h5")
    for job in (hpcfl(*train), hpcfl(*bench)):
        assert job.returncode == 0, job.stderr
    (folder / "damaged.h5").write_bytes(b"nothing")
    return folder


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("kind", ["partition", "accuracy"])
def test_a_training_run_is_drawn(results: Path, tmp_path: Path, kind: str, ending: str) -> None:
    path = tmp_path / f"figure.{ending}"
    job = hpcfl("plot", results / "trained.h5", "--kind", kind, "--output", path)

    assert (job.returncode, job.stdout) == (0, f"Figure: {path}\n")
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)


def test_files_that_cannot_be_drawn_are_left_out_with_a_warning(
    results: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    job = hpcfl("plot", results, "--kind", "accuracy", "--against", "bytes", "--output", path)

    assert job.returncode == 1  # a file could not be read
    assert path.exists()
    assert "bench.h5 has no finished round of training; left out" in job.stderr
    assert "damaged.h5 is damaged or is not an HDF5 file" in job.stderr
    assert job.stderr.count("\n") == 2


@pytest.mark.parametrize(
    ("file", "options", "sentence"),
    [
        ("bench.h5", ["--kind", "accuracy"], "has no finished round of training to draw"),
        ("trained.h5", ["--kind", "partition", "--output", "a.gif"], "a.gif does not end in"),
        ("trained.h5", ["--kind", "nonsense"], "'nonsense' is not one of 'partition', 'accuracy'"),
        ("nothing.h5", ["--kind", "accuracy"], "there is no file or folder"),
    ],
)
def test_wrong_use_of_plot_is_one_sentence(
    results: Path, file: str, options: list[str], sentence: str
) -> None:
    job = hpcfl("plot", results / file, *options)

    assert job.returncode == 2
    assert sentence in job.stderr
    assert job.stderr.count("\n") == 1
