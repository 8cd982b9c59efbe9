"""What commands say of wrong use, and with which exit status."""

import ast
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from commandline import hpcfl, refusal

import hpcfl as package
from hpcfl.report.formats import counted
from hpcfl.results.reader import load

# What is only said of two and more.
SEVERAL = {
    # A ring's degree is even, and warnings on launches and a limit on runs are of several.
    *("{degree} neighbours", "{self.degree} neighbours", "{len(runs)} runs"),
    *("{summary.repeats} launches", "{len(side.files)} launches", "{asked.launches} launches"),
    *("{started} processes", "{hosts} hosts", "{self.threshold + REDUNDANT} neighbours"),
}
SOURCES = sorted(Path(package.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_one_round_is_not_1_rounds_and_warnings_begin_alike(path):
    text = path.read_text(encoding="utf-8")

    assert not re.search(r"[\"'(]Warning: ", text)
    assert not re.search(r"\{[^{}]*\} rounds\b", text), "see formats.counted"


# Of what there may be one of, in what commands print.
COUNTED = "runs|cells|launches|checks|repeats|hosts|tasks|neighbours|parameters|messages|processes"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_numbers_of_things_are_written_by_one_function(path):
    """Where one of them is possible: not of a limit, or where the sentence is only of several."""
    text = path.read_text(encoding="utf-8")
    possible = [
        found[0]
        for found in re.finditer(rf"\{{([^{{}}]*)\}} ({COUNTED})\b", text)
        if not re.fullmatch(r"[A-Z_]+", found[1]) and found[0] not in SEVERAL
    ]

    assert possible == [], "see formats.counted"


@pytest.mark.parametrize(
    ("number", "what", "written"),
    [
        *((0, "round", "0 rounds"), (1, "round", "1 round"), (2, "round", "2 rounds")),
        *((1, "launch", "1 launch"), (2, "launch", "2 launches"), (3, "process", "3 processes")),
        *((1, "reply", "1 reply"), (2, "reply", "2 replies"), (2, "other host", "2 other hosts")),
    ],
)
def test_one_and_several(number, what, written):
    assert counted(number, what) == written


def test_one_of_everything_is_printed_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = '[fixed]\ndim = 1\nrounds = 1\nwarmup = 0\n[grid]\nprotocol = ["fedavg"]\ndevices = 1\n'
    Path("plan.toml").write_text(plan)
    printed = [
        hpcfl("sweep", "plan.toml", "--output", "swept", *more)
        for more in (("--dry-run",), ("--freeze",), (), ("--dry-run",))
    ]
    printed += [
        hpcfl("merge", "swept", "--output", "merged"),
        hpcfl("report", "merged"),
        hpcfl("report", "merged", "--by-phase"),
    ]
    for done in printed:
        wrong = re.findall(r"(?<![\d.,])1 [a-z]+s\b(?!,)", done.stdout + done.stderr)
        assert [one for one in wrong if one not in ("1 s", "1 ms", "1 is", "1 has")] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_package_that_is_missing_is_one_kind_of_error(path):
    """So that it is always wrong use, with the same exit status and the same advice."""
    for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(handler, ast.ExceptHandler) or not isinstance(handler.type, ast.Name):
            continue
        if handler.type.id not in ("ImportError", "ModuleNotFoundError"):
            continue
        raised = [one.exc for one in ast.walk(handler) if isinstance(one, ast.Raise) and one.exc]
        assert [ast.unparse(one.func) for one in raised if isinstance(one, ast.Call)] in (
            [],
            ["MissingPackageError"],
        )


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "none.h5"),
        ("plot", "none.h5", "--kind", "phases"),
        ("compare", "none.h5", "none.h5"),
        ("merge", "none.h5", "--output", "merged"),
        ("bench", "fedavg", "--devices", "3", "--resume", "none.h5"),
        ("bench", "fedavg", "--devices", "3", "--updates", "none.npy"),
        ("train", "fedavg", "--devices", "3", "--resume", "none.npz"),
        ("attack", "components", "none.npz"),
        ("predict", "secagg", "--calibration", "none.json"),
        ("sweep", "none.toml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_file_that_there_is_not_is_wrong_use(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)

    assert "none." in refusal(*arguments)


def test_bench_names_all_that_it_can_measure():
    assert "ckks, prf, dp-fedavg, or give MODULE:CLASS" in refusal("bench", "nosuch")
    # Which adds its noise within one of the others.
    assert "dp-fedavg" not in refusal("bench", "dp-fedavg", "--aggregate", "nosuch")


def test_updates_say_how_many_devices_there_are_in_one_process(tmp_path):
    np.save(tmp_path / "three.npy", np.zeros((3, 5), np.float32))
    np.save(tmp_path / "none.npy", np.zeros((0, 5), np.float32))
    file = tmp_path / "run.h5"
    options = ("--rounds", "1", "--warmup", "0", "--output", file)
    done = hpcfl("bench", "fedavg", "--updates", tmp_path / "three.npy", *options)

    assert done.returncode == 0, done.stderr
    assert load(file).devices == 3
    refused = refusal("bench", "fedavg", "--updates", tmp_path / "three.npy", "--devices", "4")
    assert "has 3 rows for 4 devices; give --devices 3" in refused
    refused = refusal("bench", "fedavg", "--updates", tmp_path / "three.npy", "--devices", "1")
    assert "has 3 rows for 1 device; give --devices 3" in refused
    refused = refusal("bench", "fedavg", "--updates", tmp_path / "none.npy")
    assert "shape (0, 5); numbers of shape (devices, coordinates) are needed" in refused


def test_a_file_of_updates_without_updates_says_what_it_has(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["vectors"] = np.zeros((3, 5))
    refused = refusal("bench", "fedavg", "--devices", "3", "--updates", tmp_path / "other.h5")

    assert "it has no array 'updates', only ['vectors']" in refused


def test_a_cell_that_runs_alone_is_not_one_of_1(tmp_path):
    (tmp_path / "plan.toml").write_text(
        "[fixed]\ndim = 10\nrounds = 1\ndevices = 3\n[grid]\nprotocol = ['fedavg', 'secagg']\n"
    )
    options = (tmp_path / "plan.toml", "--output", tmp_path / "out")
    hpcfl("sweep", *options, "--freeze")
    one, both = hpcfl("sweep", *options, "--cell", "1"), hpcfl("sweep", *options)

    assert one.stdout.startswith("cell 1: ")
    assert both.stdout.startswith("cell 0 of 2: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("bench", "--", "nosuch"), "there is no protocol 'nosuch'"),
        (("train", "--", "nosuch"), "there is no algorithm 'nosuch'"),
    ],
)
def test_a_job_for_what_there_is_not_is_refused(arguments, sentence):
    assert sentence in refusal("slurm", "render", *arguments)
    # One's own may be found where the job runs.
    own = hpcfl("slurm", "render", arguments[0], "--", "mine:Mine")
    assert (own.returncode, "mine:Mine" in own.stdout) == (0, True)


def test_training_shows_no_density_where_all_is_sent_and_no_option_that_it_has_not(tmp_path):
    for aggregate in ("fedavg", "sparse"):
        done = hpcfl(
            *("train", "fedavg", "--aggregate", aggregate, "--devices", "3", "--rounds", "1"),
            *("--output", tmp_path / f"{aggregate}.h5"),
        )
        assert done.returncode == 0, done.stderr
        assert "after 1 round," in done.stdout
        assert "--warmup" not in hpcfl("report", tmp_path / f"{aggregate}.h5").stdout

    assert load(tmp_path / "fedavg.h5").config["alpha"] is None
    assert load(tmp_path / "sparse.h5").config["alpha"] == 0.1
