"""What a shell completes, and what it is told by ``hpcfl completion``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from commandline import hpcfl
from test_help import COMMANDS

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.algorithms.federated import PRIVATE, REGISTRY
from hpcfl.cli import COMMANDS as TOP
from hpcfl.cli import completing, group
from hpcfl.cli.completion import SHELLS
from hpcfl.comm.phases import phase_names
from hpcfl.learning import fetch, models, partition
from hpcfl.options.compare import METRICS
from hpcfl.options.definition import options_of
from hpcfl.options.training import TrainOptions
from hpcfl.plots import KINDS, style
from hpcfl.results.columns import COLUMNS
from hpcfl.sweeping.shipped import titles
from hpcfl.training.presets import PRESETS

DP = {"dp-fedavg"}
SHARED = {"share_keys", "share_masks", "share_input"}
ACCURACIES = {name for name in COLUMNS if name.startswith("accur")}


def offered(*words):
    """Return what a shell is offered in place of the last word."""
    found = BashComplete(group, {}, "hpcfl", "_HPCFL_COMPLETE")
    *before, last = words
    return [item.value for item in found.get_completions(list(before), last)]


def test_names_that_are_known_without_numpy_are_those_that_there_are():
    assert [kind.partition(":")[0] for kind in partition.KINDS] == [
        kind.rstrip(":") for kind in completing.PARTITIONS
    ]
    assert {*fetch.DOWNLOADS} == {*completing.DOWNLOADS}
    assert {*completing.PHASES} == {
        phase
        for name in PROTOCOLS
        for phase in phase_names(find(name).steps)
        if phase not in ("model", "result")
    }
    assert {*style.STYLES} == {*completing.NAMES["style"](None)}
    assert {*style.WIDTHS} == {*completing.NAMES["size"](None)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], {*TOP}),
        (["privacy", ""], {"exposure", "epsilon", "noise"}),
        (["bench", ""], {*PROTOCOLS} | DP),
        (["predict", ""], {*PROTOCOLS}),
        (["privacy", "exposure", ""], {*PROTOCOLS}),
        (["train", ""], {*REGISTRY}),
        (["privacy", "epsilon", ""], {*PRIVATE}),
        (["attack", "audit", ""], {*PRIVATE}),
        (["train", "fedavg", "--aggregate", ""], {*PROTOCOLS}),
        (["train", "fedavg", "--model", ""], {*models.NAMES}),
        (["train", "fedavg", "--preset", ""], {*PRESETS}),
        (["train", "fedavg", "--dataset", ""], {*options_of(TrainOptions)["dataset"].choices}),
        (["data", "fetch", ""], {*fetch.DOWNLOADS}),
        (["bench", "sparse", "--dropout-phase", "share_"], SHARED),
        (["bench", "sparse", "--kill", ""], set()),
        (["compare", "--metric", ""], {*METRICS}),
        (["plot", "--kind", ""], {*KINDS}),
        (["report", "--columns", "protocol,accur"], {f"protocol,{one}" for one in ACCURACIES}),
        (["report", "--where", "protocol=sparse,devices"], {"protocol=sparse,devices="}),
        (["slurm", "render", ""], {"bench", "sweep-array", "train", "scaling"}),
        (["completion", ""], {*SHELLS}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_names_are_completed(words, expected):
    assert {*offered(*words)} == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_every_command_are_completed(name):
    expected = {
        opt
        for one in COMMANDS[name].params
        if isinstance(one, click.Option)
        for opt in (*one.opts, *one.secondary_opts)
        if opt.startswith("--")
    }

    assert {*offered(*name.split(), "--")} == expected | {"--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_choices_of_every_option_are_completed(name):
    for one in COMMANDS[name].params:
        metavar = getattr(one, "metavar", None) or ""
        if isinstance(one, click.Option) and "|" in metavar:
            assert {*offered(*name.split(), one.opts[0], "")} == {*metavar[1:-1].split("|")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", ""], ["a.h5", "empty/", "runs/"]),
        (["report", "runs"], ["runs/b.hdf5", "runs/c.h5"]),
        (["report", "a.h5", "runs/c"], ["runs/c.h5"]),
        (["plot", "a"], ["a.h5"]),
        (["compare", "a.h5", "a"], ["a.h5"]),
        (["attack", "components", "t"], ["t.npz"]),
        (["sweep", "mypl"], ["myplan.toml"]),
        (["bench", "sparse", "--updates", "u"], ["u.npy"]),
        (["bench", "sparse", "--output", "a"], ["a.h5"]),
        (["plot", "--output", "f"], ["f.pdf"]),
        (["predict", "sparse", "--calibration", "p"], ["p.json"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_files_with_the_right_ending_are_completed(tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("empty").mkdir()
    for name in ("a.h5", "runs/b.hdf5", "runs/c.h5", "t.npz", "myplan.toml", "u.npy", "f.pdf"):
        Path(name).touch()
    for name in ("a.txt", "runs/notes", "p.json", "txt.md", "unknown", "figure.txt", ".h5"):
        Path(name).touch()

    assert offered(*words) == expected


def test_plans_are_completed_by_name_and_by_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("table.toml").touch()

    assert {*offered("sweep", "")} == {*titles(), "table.toml"}


@pytest.mark.parametrize("words", ["report ", "train fedavg --mo", "sweep ", "plot --kind "])
def test_completion_loads_nothing_heavy(words, tmp_path):
    code = (
        "import sys\nfrom hpcfl.cli import group\nfrom click.shell_completion import BashComplete\n"
        f"*before, last = {words.split(' ')!r}\n"
        "found = BashComplete(group, {}, 'hpcfl', 'X').get_completions(before, last)\n"
        "print(len(found), {'numpy', 'h5py', 'mpi4py', 'torch', 'matplotlib'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.split()[1:] == ["set()"], done.stdout + done.stderr
    assert done.stdout.split()[0] != "0" or words == "report "


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_every_shell(shell):
    done = hpcfl("completion", shell)

    assert (done.returncode, done.stderr) == (0, "")
    assert "_HPCFL_COMPLETE" in done.stdout


def test_bash_completes(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    program = tmp_path / "hpcfl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcfl "$@"\n')
    program.chmod(0o755)
    (tmp_path / "run.h5").touch()
    script = """
        eval "$(hpcfl completion bash)"
        completed() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _hpcfl_completion hpcfl
            echo "${COMPREPLY[@]}"
        }
        completed hpcfl pred
        completed hpcfl bench secagg-
        completed hpcfl bench sparse --dropout-m
        completed hpcfl report ru
    """
    done = subprocess.run(
        [bash, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )

    assert done.stdout.split("\n")[:4] == [
        "predict",
        "secagg-graph",
        "--dropout-model",
        "run.h5",
    ], done.stderr
