"""Files that commands cannot use: a status that is not 0, and one sentence that names the file."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from commandline import hpcfl

import hpcfl as api

PREDICT = ("predict", "fedavg", "--devices", 3, "--dim", 4, "--calibration", "bad")
TRAIN = ("train", "fedavg", "--devices", 2, "--rounds", 1, "--output", "x.h5")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run commands in a folder with one good results file."""
    monkeypatch.chdir(tmp_path)
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output="good.h5")


def refused(name, *command):
    """Run a command that must refuse a file of a name, and write nothing; return the sentence."""
    before = sorted(Path().rglob("*"))
    done = hpcfl(*command)

    assert done.returncode in (1, 2), done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert name in line
    assert len(line) < 1000
    assert sorted(Path().rglob("*")) == before
    return line


def spoil(how):
    """Make bad.h5: the good file with something wrong."""
    content = Path("good.h5").read_bytes()
    if how == "a folder":
        Path("bad.h5").mkdir()
    elif how != "missing":
        Path("bad.h5").write_bytes(
            {"cut": content[:-3000], "text": b"no results", "empty": b""}.get(how, content)
        )
    if how == "no permission":
        os.chmod("bad.h5", 0)
    if how in ("other schema", "of others", "incomplete"):
        with h5py.File("bad.h5", "r+") as file:
            if how == "incomplete":
                del file["rounds"]
            else:
                file.attrs["schema"] = "hpcfl/2" if how == "other schema" else "theirs"


RESULTS = {
    "missing": "there is no file",
    "a folder": "no results",
    "cut": "truncated file",
    "text": "file signature not found",
    "empty": "cannot be read as HDF5",
    "of others": "is not a results file of hpcfl",
    "other schema": "this version of hpcfl reads hpcfl/1",
    "incomplete": "is damaged",
    "no permission": "Permission denied",
}


@pytest.mark.parametrize("how", RESULTS)
def test_results_that_cannot_be_read(how):
    if how == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    spoil(how)

    assert RESULTS[how] in refused("bad.h5", "report", "bad.h5")


def test_a_bad_file_among_good_ones_is_left_out():
    spoil("cut")
    done = hpcfl("report", "good.h5", "bad.h5")

    assert done.returncode == 1
    assert "good.h5" in done.stdout
    assert "warning: bad.h5" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("bad.toml", "not TOML", ("sweep", "bad.toml", "--dry-run")),
        ("bad.toml", None, ("sweep", "bad.toml")),
        ("sweep.json", "{}", ("sweep", "plan.toml", "--cell", 0, "--output", ".")),
        ("bad", "text", PREDICT),
        ("bad", '{"format": "hpcfl-calibration/6"}', PREDICT),
        ("bad", None, PREDICT),
        ("bad", "text", ("optimize", "fedsgd-dpc", "bad")),
        ("bad.npz", "text", ("attack", "components", "bad.npz")),
        ("bad.npy", "text", ("bench", "fedavg", "--updates", "bad.npy")),
        ("bad.npy", np.array([[{}]]), ("bench", "fedavg", "--updates", "bad.npy")),
        ("bad.npz", "text", (*TRAIN, "--resume", "bad.npz")),
        ("bad.npz", {"version": 4}, (*TRAIN, "--resume", "bad.npz")),
        ("good.h5", None, (*TRAIN, "--resume", "good.h5")),
        (
            "mnist/train-images-idx3-ubyte",
            "cut",
            (*TRAIN, "--dataset", "mnist", "--data-dir", "."),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_files_that_cannot_be_read(name, content, command):
    if command[0] == "train":
        pytest.importorskip("torch")
    Path("plan.toml").write_text('[fixed]\ndim = 4\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n')
    Path("mnist").mkdir()
    for part in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        Path("mnist", f"{part}-ubyte").write_text("cut")
    if isinstance(content, dict):
        np.savez(name, **content)
    elif isinstance(content, np.ndarray):
        np.save(name, content, allow_pickle=True)
    elif content is not None:
        Path(name).write_text(content)

    refused(name, *command)
