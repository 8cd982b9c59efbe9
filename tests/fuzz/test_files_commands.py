"""The commands on bad files: a status that is not 0, one sentence on stderr, no traceback."""

import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from commandline import hpcfl

from hpcfl.cli import group
from hpcfl.errors import HpcflError

NESTED = "[" * 100_000


def refused(*arguments, name, status):
    """Run a command that must refuse the file of a name."""
    done = CliRunner().invoke(group, [*map(str, arguments)])
    assert isinstance(done.exception, HpcflError | SystemExit), repr(done.exception)
    assert status == getattr(done.exception, "exit_status", done.exit_code), done.output
    said = str(done.exception) if isinstance(done.exception, HpcflError) else ""
    (line,) = (done.stderr + said).strip().splitlines()
    assert name in line
    assert len(line) < 1000


@pytest.fixture(scope="module")
def good_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.h5"
    done = hpcfl("bench", "fedavg", "--devices", 3, "--dim", 7, "--rounds", 2, "--output", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(params=["cut", "linked", "text"])
def bad_run(request, good_run, tmp_path):
    path = tmp_path / "bad.h5"
    shutil.copy(good_run, path)
    if request.param == "cut":
        path.write_bytes(path.read_bytes()[:-3000])
    elif request.param == "text":
        path.write_text("no results")
    else:
        with h5py.File(path, "r+") as file:
            del file["rounds"]
            file["rounds"] = h5py.ExternalLink(str(good_run), "/rounds")
    return path


@pytest.mark.parametrize("command", ["report", "plot", "compare", "merge"])
def test_bad_results(bad_run, tmp_path, command):
    arguments = {
        "report": [bad_run],
        "plot": [bad_run, "--kind", "phases", "--output", tmp_path / "x.png"],
        "compare": [bad_run, bad_run],
        "merge": [bad_run, "--output", tmp_path / "merged"],
    }[command]

    refused(command, *arguments, name="bad.h5", status=1)
    assert not (tmp_path / "merged").exists()


def test_a_bad_file_among_good_ones_is_left_out(bad_run, good_run):
    done = subprocess.run(
        [sys.executable, "-m", "hpcfl", "report", good_run, bad_run],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "good.h5" in done.stdout
    assert f"warning: {bad_run}" in done.stderr
    assert "Traceback" not in done.stderr


TRAIN = ("train", "fedavg", "--devices", 2, "--rounds", 1, "--output", "x.h5")


@pytest.mark.parametrize(
    ("name", "content", "status", "command"),
    [
        ("bad.toml", NESTED, 2, ("sweep", "bad.toml", "--dry-run", "--output", "out")),
        ("sweep.json", NESTED, 1, ("sweep", "plan.toml", "--cell", 0, "--output", ".")),
        ("bad.npz", NESTED, 2, ("attack", "components", "bad.npz")),
        ("bad.json", NESTED, 1, ("predict", "fedavg", "--calibration", "bad.json")),
        ("bad.json", NESTED, 2, ("optimize", "fedsgd-dpc", "--constants", "bad.json")),
        (
            *("bad.npy", np.array([[{}]]), 2),
            ("bench", "fedavg", "--updates", "bad.npy", "--output", "."),
        ),
        ("bad.npz", {"version": 2, "next_round": -1}, 2, (*TRAIN, "--resume", "bad.npz")),
        (
            *("train-images-idx3-ubyte", b"\x00\x00\x08\x03" + b"\xff" * 12, 2),
            (*TRAIN, "--dataset", "mnist", "--data-dir", "."),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_files_of_other_commands(tmp_path, monkeypatch, name, content, status, command):
    if command[0] == "train":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    if isinstance(content, dict):
        np.savez(name, **content)
    elif isinstance(content, np.ndarray):
        np.save(name, content, allow_pickle=True)
    elif isinstance(content, bytes):
        Path("mnist").mkdir()
        for other in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            Path("mnist", f"{other}-ubyte").write_bytes(content)
        Path("mnist", name).write_bytes(content)
    else:
        Path(name).write_text(content)
    before = sorted(Path().rglob("*"))

    refused(*command, name=name, status=status)
    assert before == sorted(Path().rglob("*")), "it has written something"
