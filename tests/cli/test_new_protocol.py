"""`hpcfl new-protocol`: what it writes is a whole protocol, whose test passes as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import hpcfl, refusal

from hpcfl import scaffold
from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.overheads import OVERHEADS
from hpcfl.results import load

NAMED = "my_sum:MySum"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("my_sum", None)


@pytest.fixture
def written():
    shown = told("new-protocol", "my_sum")
    assert "my_sum.py\ntest_my_sum.py\n" in shown
    return shown


def told(*arguments):
    done = hpcfl(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_test_passes_and_the_style_is_ours(written, folder):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout)
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is not None:
        style = ("--isolated", "--line-length", "100")
        for command in (["check", "--select", "E,F,B,UP,SIM,PT"], ["format", "--check"]):
            done = subprocess.run([ruff, *command, *style, "."], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_printed_as_the_next_steps_works(written):
    pytest.importorskip("torch")
    steps = [line.split() for line in written.partition("Next:")[2].splitlines() if line.strip()]

    assert [step[0] for step in steps] == ["pytest", "hpcfl", "hpcfl"]
    for step in steps[1:]:
        small = () if step[1] == "train" else ("--dim", 50)
        told(*step[1:], "--rounds", 2, *small, "--output", "results")


def test_it_runs_with_every_command(written):
    Calibration({one: [1e-8] for one in (*OPERATIONS, *OVERHEADS)}).save("c.json")
    size = ("--devices", 6, "--dim", 40)
    told("bench", NAMED, *size, "--rounds", 2, "--warmup", 0, "--output", "run.h5")
    run = load("run.h5")
    found = json.loads(told("predict", NAMED, *size, "--calibration", "c.json", "--json"))
    (predicted,) = found["predictions"]
    exposed = json.loads(told("privacy", "exposure", NAMED, "--simulated", 100, "--json"))

    assert run.validated.all()
    assert run.config["promises"]
    assert predicted["total"]["bytes_up"] == run.bytes_up[0].sum(axis=0).mean()
    assert predicted["total"]["bytes_down"] == run.bytes_down[0].sum(axis=0).mean()
    assert exposed["alone_of_sent"]["formula"] == 0.0
    for more in (("--upload", "reduce", "--group", "ring32"), ("--bits", "12")):
        told("bench", NAMED, *size, *more, "--rounds", 1, "--output", "results")


def test_a_folder_is_made_and_nothing_is_overwritten(folder):
    shown = told("new-protocol", "a_sum", "--output", "some folder/inside")
    assert "cd 'some folder/inside'" in shown
    written = sorted(path.name for path in Path("some folder/inside").iterdir())
    assert written == ["a_sum.py", "test_a_sum.py"]

    Path("test_b_sum.py").write_text("mine")
    assert "test_b_sum.py exists already" in refusal("new-protocol", "b_sum")
    assert not Path("b_sum.py").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("my-sum", "cannot be the name of a Python module"),
        ("MySum", "cannot be the name"),
        ("2sum", "cannot be the name"),
        ("class", "cannot be the name"),
        ("../x", "cannot be the name"),
        ("secagg", "is a protocol that comes with hpcfl"),
        ("json", "is a module that is installed already"),
        ("numpy", "is a module that is installed already"),
        ("hpcfl", "has another meaning in the file"),
        ("step", "Step has another meaning in the file"),
        ("sum", "SumServer has another meaning in the file"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name, sentence, folder):
    assert sentence in refusal("new-protocol", name)
    assert not list(folder.iterdir())


def test_nothing_of_the_templates_names_is_left():
    for name, text in scaffold.files("other_sum").items():
        assert not re.search(r"(\b|_)mine\b|Mine", text), name
        assert "CHANGE" in text, name
    # What is the author's to change is said where it is to be changed.
    assert scaffold.files("other_sum")["other_sum.py"].count("CHANGE") >= 4
