"""No command overwrites a file that it did not make for that purpose."""

from pathlib import Path

import numpy as np
import pytest
from commandline import hpcfl, refusal

import hpcfl as api

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
}
FIGURE = ("plot", "good.h5", "--kind", "phases", "--output", "x.png")


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


@pytest.mark.parametrize("what", [*KEPT, "a figure"])
def test_a_file_of_another_kind_stays_and_nothing_is_begun(what, folder):
    pytest.importorskip("matplotlib")
    name, *command = KEPT.get(what, ("x.png", *FIGURE))
    for content in (b"mine\n", Path("good.h5").read_bytes()):
        Path(name).write_bytes(content)
        before = contents(folder)

        assert name in refusal(*command)
        assert contents(folder) == before


def test_an_older_figure_is_replaced_and_folders_are_made(folder):
    pytest.importorskip("matplotlib")
    path = Path("new", "folder", "x.png")
    for told in (str(path), f"{path} (replaced)"):
        done = hpcfl(*FIGURE[:-1], path)
        assert done.returncode == 0, done.stderr
        assert any(line.endswith(f": {told}") for line in done.stdout.split("\n")), done.stdout

    assert [one.name for one in path.parent.iterdir()] == ["x.png"]


def test_a_checkpoint_of_another_kind_is_found_before_a_training(folder):
    pytest.importorskip("torch")
    np.savez("run.checkpoint.npz", mine=np.zeros(3))
    before = contents(folder)
    command = ("train", "fedavg", "--devices", 2, "--rounds", 1, "--output", "run.h5")

    assert "run.checkpoint.npz" in refusal(*command)
    assert contents(folder) == before
