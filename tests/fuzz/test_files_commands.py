"""The commands on bad files: a status that is not 0, one sentence on stderr, no traceback."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hpcfl.cli import group
from hpcfl.errors import HpcflError
from hpcfl.results.record import RoundRecord
from hpcfl.results.writer import ResultsWriter


def refused(*arguments, name, status=None):
    """Run a command that must refuse the file of a name; return its sentence."""
    done = CliRunner().invoke(group, [*map(str, arguments)])
    assert isinstance(done.exception, HpcflError | SystemExit), repr(done.exception)
    ended = getattr(done.exception, "exit_status", done.exit_code)
    assert ended in ((1, 2) if status is None else (status,)), done.output
    said = str(done.exception) if isinstance(done.exception, HpcflError) else ""
    (line,) = (done.stderr + said).strip().splitlines()
    assert name in line
    assert len(line) < 1000
    return line


def good_run(path):
    with ResultsWriter(
        path,
        protocol="secagg",
        command="hpcfl bench secagg",
        config={"dim": 7},
        environment={},
        phases=["model"],
        devices=3,
        rounds=2,
    ) as writer:
        for _ in range(2):
            record = RoundRecord.empty(1, 3)
            record.validated = True
            writer.append(record)
    return path


@pytest.fixture(params=["cut", "linked", "text"])
def bad_run(request, tmp_path):
    path = good_run(tmp_path / "bad.h5")
    if request.param == "cut":
        path.write_bytes(path.read_bytes()[:-3000])
    elif request.param == "text":
        path.write_text("no results")
    else:
        good_run(tmp_path / "other.h5")
        with h5py.File(path, "r+") as file:
            del file["rounds"]
            file["rounds"] = h5py.ExternalLink("other.h5", "/rounds")
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


def test_a_bad_file_among_good_ones_is_left_out(bad_run, tmp_path):
    good = good_run(tmp_path / "good.h5")
    done = subprocess.run(
        [sys.executable, "-m", "hpcfl", "report", good, bad_run],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "good.h5" in done.stdout
    assert f"warning: {bad_run}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, "[fixed]\ndim = " + "9" * 5000, "\x00"])
def test_a_bad_plan(tmp_path, text):
    (tmp_path / "bad.toml").write_text(text)

    refused(
        *("sweep", tmp_path / "bad.toml", "--dry-run", "--output", tmp_path / "out"),
        name="bad.toml",
        status=2,
    )


def test_a_bad_manifest(tmp_path):
    (tmp_path / "sweep.json").write_text("[" * 100_000)

    refused(*("sweep", "plan.toml", "--cell", 0, "--output", tmp_path), name="sweep.json", status=1)


@pytest.mark.parametrize("name", ["bad.npy", "bad.h5"])
def test_bad_updates(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".npy":
        np.save(path, np.array([[{}]]), allow_pickle=True)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("updates", (3, 2**40), chunks=(1, 1024))

    refused("bench", "fedavg", "--updates", path, "--output", tmp_path, name=name, status=2)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_bad_data(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "mnist").mkdir()
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "mnist" / f"{stem}-ubyte").write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12)

    refused(
        *("train", "fedavg", "--dataset", "mnist", "--data-dir", tmp_path, "--devices", 2),
        *("--rounds", 1, "--output", tmp_path / "x.h5"),
        name="train-images-idx3-ubyte",
        status=2,
    )


def test_a_bad_checkpoint(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    np.savez(tmp_path / "bad.npz", version=2, next_round=-1)

    refused(
        *("train", "fedavg", "--devices", 2, "--rounds", 2, "--output", tmp_path / "x.h5"),
        *("--resume", tmp_path / "bad.npz"),
        name="bad.npz",
        status=2,
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bad.npz", ("attack", "components", "bad.npz")),
        ("bad.json", ("predict", "fedavg", "--calibration", "bad.json", "--devices", "5")),
        ("locks.json", ("reproduce", "--list", "--output", ".")),
        ("bad.json", ("optimize", "fedsgd-dpc", "--constants", "bad.json", "--epsilon", "1")),
    ],
)
def test_bad_files_of_other_commands(tmp_path, monkeypatch, name, arguments):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(json.dumps({"results": [1]}) if name == "locks.json" else "[" * 100_000)

    refused(*arguments, name=name)
