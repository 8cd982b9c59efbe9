"""No command overwrites a file that it did not make for that purpose."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.costmodel.calibration import Calibration
from hpcfl.errors import HpcflError
from hpcfl.results import load
from hpcfl.system import outputs

SMALL = ("--devices", 3, "--dim", 4, "--rounds", 1, "--warmup", 0)
# What is never overwritten, and what takes the place of an older one: the name and the command.
KEPT = {
    "results": ("x.h5", "bench", "fedavg", *SMALL, "--output", "x.h5"),
    "an aggregate": ("x.npy", "bench", "fedavg", *SMALL, "--save-aggregate", "x.npy"),
    "a transcript": (
        *("x.npz", "bench", "secagg", *SMALL, "--insecure-seed", 1),
        *("--keep-transcript", "x.npz"),
    ),
    "a sweep": ("x", "sweep", "plan.toml", "--output", "x"),
    "merged results": ("x", "merge", "good.h5", "--output", "x"),
}
REPLACED = {
    "a trace": ("x.json", "report", "good.h5", "--trace", "x.json"),
    "a figure": ("x.png", "plot", "good.h5", "--kind", "phases", "--output", "x.png"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder with results and a plan, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output="good.h5")
    Path("plan.toml").write_text('[fixed]\ndim = 4\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n')
    return tmp_path


def contents(folder):
    """Return what is in a folder."""
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("what", KEPT | REPLACED)
def test_a_file_of_another_kind_stays_and_nothing_is_begun(what, folder):
    pytest.importorskip("matplotlib")
    name, *command = (KEPT | REPLACED)[what]
    for content in (b"mine\n", Path("good.h5").read_bytes()):
        Path(name).write_bytes(content)
        before = contents(folder)

        assert name in refusal(*command)
        assert contents(folder) == before


@pytest.mark.parametrize("what", REPLACED)
def test_an_older_one_of_its_kind_is_replaced_and_folders_are_made(what, folder):
    pytest.importorskip("matplotlib")
    name, *command = REPLACED[what]
    path = Path("new", "folder", name)
    for told in (str(path), f"{path} (replaced)"):
        done = hpcfl(*command[:-1], path)
        assert done.returncode == 0, done.stderr
        assert any(line.endswith(f": {told}") for line in done.stdout.split("\n")), done.stdout

    assert [one.name for one in path.parent.iterdir()] == [name]


def test_a_folder_without_permission_is_found_before_the_work(folder):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    Path("locked").mkdir(mode=0o500)

    assert "Permission denied" in refusal("bench", "fedavg", *SMALL, "--output", "locked/x.h5")


def test_a_file_that_a_link_leads_to_is_replaced_and_not_the_link(folder):
    Path("x.json").symlink_to("real.json")
    for _ in range(2):
        assert hpcfl("report", "good.h5", "--trace", "x.json").returncode == 0

    assert Path("x.json").is_symlink()
    assert Path("real.json").is_file()


def test_a_calibration_replaces_a_calibration(folder):
    for cost in (1e-8, 2e-8):
        Calibration({name: [cost] for name in OPERATIONS}).save(Path("c.json"))

    assert json.loads(Path("c.json").read_text())["cpu_seconds"]["mask_word"] == [2e-8]
    Path("c.json").write_text('{"format": "another/1"}')
    with pytest.raises(HpcflError, match="not one of hpcfl's calibrations"):
        Calibration({}).save(Path("c.json"))


def test_a_file_that_comes_meanwhile_stays_too(folder):
    def come(index, played):
        Path("sum.npy").write_text("mine")

    with pytest.raises(HpcflError, match=r"sum\.npy exists already"):
        api.bench(
            "fedavg", devices=3, dim=4, save_aggregate="sum.npy", output="run.h5", progress=come
        )

    assert Path("sum.npy").read_text() == "mine"
    assert load("run.h5").status == "failed"
    assert len(load("run.h5").round_seconds) == 12


@pytest.mark.parametrize("kind", [outputs.TRANSCRIPT, outputs.FIGURE])
def test_nothing_is_left_of_a_file_that_cannot_be_written(kind, folder):
    def fail():
        with outputs.writing(Path("new", "x.png"), kind) as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(HpcflError, match=r"cannot write new/x.png \(No space left on device\)"):
        fail()
    assert list(Path("new").iterdir()) == []


def test_a_checkpoint_of_another_kind_is_found_before_a_training(folder):
    pytest.importorskip("torch")
    np.savez("run.checkpoint.npz", mine=np.zeros(3))
    before = contents(folder)
    command = ("train", "fedavg", "--devices", 2, "--rounds", 1, "--output", "run.h5")

    assert "run.checkpoint.npz" in refusal(*command)
    assert contents(folder) == before


def test_an_aggregate_can_go_into_the_folder_of_the_results(folder):
    api.bench("fedavg", devices=3, dim=4, rounds=1, output="out", save_aggregate="out/sum.npy")

    assert len([*Path("out").iterdir()]) == 2


@pytest.mark.parametrize(("size", "points"), [("column", "239.76pt"), ("page", "504pt")])
def test_a_figure_has_the_size_that_is_asked_for(size, points, folder):
    pytest.importorskip("matplotlib")
    command = ("privacy", "exposure", "sparse", "--simulated", 10, "--plot", "x.svg", "--size")

    assert hpcfl(*command, size).returncode == 0
    assert f'width="{points}"' in Path("x.svg").read_text()
    assert "give column or page" in refusal(*command, "0x3")
