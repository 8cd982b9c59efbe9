"""What all commands do alike: help, wrong use, unusable files, outputs, one rank that answers."""

import io
import shutil
import warnings
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
import size
from commandline import hpcfl, invoke, refusal

import hpcfl as api
from hpcfl.cli import COMMANDS, group
from hpcfl.system import launch

LEAVES = dict(size.leaves(group))
HUGE = "1" + 30 * "0"
PRIVATE = "--rounds 2 --devices 4 --per-round 2 --batch-size 2 --samples 8"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "good.h5"
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output=path)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, results):
    """Run commands in a folder with results, one file of updates and a plan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    shutil.copy(results, "good.h5")
    Path("plan.toml").write_text('[fixed]\ndim = 4\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n')
    np.save("three.npy", np.zeros((3, 5), np.float32))
    return tmp_path


def test_there_are_fewer_than_250_options():
    assert len(size.options()) <= size.MOST_OPTIONS


def test_help_fits_80_columns_and_has_sentences():
    for name, command in LEAVES.items():
        done = hpcfl(*name.split(), "--help")
        lines = done.stdout.splitlines()

        assert done.returncode == 0, done.stderr
        assert [line for line in lines if len(line) > 80] == []
        assert "Options:" in lines
        for one in command.params:
            if isinstance(one, click.Option):
                assert one.help.partition("  [default: ")[0].endswith("."), (name, one.opts)
    first = " ".join(hpcfl("--help").stdout.split())
    assert all(f"{name} {about}" in first for name, about in COMMANDS.items())


# Numbers that nobody means: a sentence, or an answer; never a traceback.
ABSURD = (
    f"bench fedavg --devices {HUGE}",
    f"bench fedavg --devices 3 --dim {HUGE}",
    "bench fedavg --devices 3 --dim -1",
    f"bench fedavg --devices 3 --dim 4 --rounds {HUGE}",
    "bench fedavg --devices 3 --dim 4 --rounds nan",
    "bench fedavg --devices 3 --dim 4 --rounds 1 --clip 1e308",
    "bench fedavg --devices 3 --dim 4 --dropout nan",
    f"bench fedavg --devices 3 --dim 4 --seed {5000 * '9'}",
    f"bench fedavg --devices 3 --dim 4 --threads {HUGE}",
    "bench fedavg --devices 3 --dim 4 --rounds 1 --max-seconds 1e308",
    "bench fedavg --devices 3 --dim 4000000000",
    "bench sparse --devices 100000 --dim 10",
    f"train fedavg --devices 2 --rounds 1 --batch-size {HUGE}",
    "train fedavg --devices 2 --rounds 1 --learning-rate 1e308",
    "train fedavg --devices 2 --rounds 1 --epochs nan",
    "predict fedavg --devices 3 --dim 4 --latency-ms nan",
    f"predict fedavg --dim 4 --devices {HUGE}",
    "report good.h5 --uplink-mbps nan",
    "compare good.h5 good.h5 --fail-if-slower 1e308",
    f"privacy exposure sparse --devices {HUGE}",
    "privacy exposure sparse --alpha 1e308",
    f"privacy epsilon cdp {PRIVATE} --sigma 1e308",
    f"privacy epsilon cdp {PRIVATE} --sigma 1 --samples {HUGE}",
    f"privacy epsilon cdp {PRIVATE} --epsilon 1e308",
    f"privacy epsilon cdp {PRIVATE} --epsilon 1 --delta nan",
    f"sweep plan.toml --dry-run --seed {HUGE}",
    "plot good.h5 --kind phases --size 1e308",
    "attack audit dp-fedavg --runs 100 --sigma 1e308",
    f"netlab --dry-run --hosts {HUGE}",
    f"slurm render bench --ranks {5000 * '9'}",
)


def test_absurd_numbers_are_sentences():
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    for line in ABSURD:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            done = hpcfl(*line.split())
        said = [one for one in done.stderr.splitlines() if not one.lower().startswith("warning")]

        assert done.returncode in (0, 1, 2), (line, done.stderr)
        assert len(said) == bool(done.returncode), (line, done.stderr)
        assert "No such option" not in done.stderr, line
        # Python prints these with a line of the program.
        assert not [str(one.message) for one in warned], line


WRONG = {
    "tarin fedavg": "did you mean 'train'?",
    "bench": "no protocol is given",
    "bench secgag": "did you mean 'secagg'?",
    "bench secagg --aplha 0.1": "--alpha",
    "bench nosuch": "flamingo, prf, dp-fedavg, or give MODULE:CLASS",
    "bench sparse --devices 0": "--devices is 0; it must be at least 1",
    "bench sparse --devices 2,3 --output x.h5": "let --output name a folder",
    "bench math:pi": "'math:pi' must be a subclass of",
    "bench no_such_module:X": "cannot be loaded",
    "bench sparse --keep-transcript x.npz": "together with --insecure-seed",
    "bench secagg --devices 3 --dropout-phase maskedinput": "did you mean 'masked_input'?",
    "bench secagg --model 2nn --dim 10": "--model and --dim both say how long the vectors are",
    "bench secagg --model resnet": "there is no model 'resnet'",
    "bench fedavg --updates three.npy --model 2nn": "--model and --updates both say",
    "bench fedavg --updates three.npy --devices 4": "has 3 rows for 4 devices; give --devices 3",
    "train fedvag": "did you mean 'fedavg'?",
    "train fedavg --preset zcdp-adult-rl": "did you mean 'zcdp-adult-lr'?",
    "predict dp-fedavg": "adds its noise within a protocol",
    "predict fedavg --gamma 0.2": "fedavg does not use --gamma",
    "attack components": "Missing argument 'TRANSCRIPT'",
    "privacy epsilon cdp --sigma 1": "must be given",
    "privacy epsilon cdp --sigma 1 --epsilon 2": "give either --sigma or --epsilon",
    "privacy epsilon cdp --sgima 1": "'--sigma'",
    "privacy epsilon nothing --sigma 1": "there is no private algorithm 'nothing'",
    "privacy exposure sparse --gamma 2/3": "66 of 100 devices collude",
    "privacy exposure secagg --alpha 0.2": "secagg does not use --alpha",
    "privacy exposure prf --dropout 0.1": "give --dropout 0",
    "sweep tabel-1": "did you mean 'table-1'?",
    "sweep plan.toml --dry-run --freeze": "give only one of",
    "data fetch minst": "did you mean 'mnist'?",
    "report good.h5 --target-accuracy 0.5": "needs a run of hpcfl train",
    "slurm render bench -- nosuch": "there is no protocol 'nosuch'",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use_is_one_sentence_and_status_2(line, folder):
    before = sorted(folder.rglob("*"))

    assert WRONG[line] in refusal(*line.split())
    assert sorted(folder.rglob("*")) == before


# Files that cannot be used: how they are spoiled, what is said, and of what commands.
SPOILT = {
    "missing": "there is no file",
    "a folder": "no results",
    "cut": "truncated file",
    "text": "file signature not found",
    "incomplete": "is damaged",
}


@pytest.mark.parametrize("how", SPOILT)
def test_results_that_cannot_be_read(how):
    content = Path("good.h5").read_bytes()
    if how == "a folder":
        Path("bad.h5").mkdir()
    elif how != "missing":
        found = {"cut": content[:-3000], "text": b"no results"}.get(how, content)
        Path("bad.h5").write_bytes(found)
    if how == "incomplete":
        with h5py.File("bad.h5", "r+") as file:
            del file["rounds"]
    done = hpcfl("report", "bad.h5")
    (line,) = done.stderr.splitlines()

    assert done.returncode in (1, 2)
    assert line.startswith("Error: ")
    assert "bad.h5" in line
    assert SPOILT[how] in line
    if how != "a folder":  # in which there is nothing to leave out
        beside = hpcfl("report", "good.h5", "bad.h5")
        assert beside.returncode == (2 if how == "missing" else 1)
        assert "good.h5" in beside.stdout or how == "missing"


def test_other_files_that_cannot_be_read():
    np.save("objects.npy", np.array([[{}]]), allow_pickle=True)
    Path("text").write_text("text")
    Path("text.npz").write_text("text")
    for line, name in (
        ("sweep text --dry-run", "text"),
        ("sweep none.toml", "none.toml"),
        ("sweep plan.toml --cell 0 --output .", "sweep.json"),
        ("predict fedavg --calibration text", "text"),
        ("predict fedavg --calibration none.json", "none.json"),
        ("optimize fedsgd-dpc text", "text"),
        ("attack components text.npz", "text.npz"),
        ("bench fedavg --updates text.npz", "text.npz"),
        ("bench fedavg --updates objects.npy", "objects.npy"),
        ("bench fedavg --resume none.h5", "none.h5"),
        ("train fedavg --devices 2 --resume text.npz", "text.npz"),
        ("train fedavg --devices 2 --resume good.h5", "good.h5"),
        ("train fedavg --devices 2 --dataset mnist --data-dir .", "mnist"),
        ("plot none.h5 --kind phases", "none.h5"),
    ):
        done = hpcfl(*line.split())
        assert done.returncode in (1, 2), line
        (said,) = done.stderr.splitlines()
        assert said.startswith("Error: "), line
        assert name in said, line


# Outputs: no command overwrites a file that it did not make for that purpose

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


# Ranks, progress, memory


@pytest.mark.parametrize(
    "line",
    [
        *("attack components round.npz", "attack audit cdp", "compare a b", "data fetch mnist"),
        *("plot a --kind phases", "predict nothing", "report nowhere"),
        *("privacy epsilon cdp", "privacy exposure nothing", "slurm render bench"),
    ],
)
def test_one_rank_alone_answers(line, monkeypatch):
    """The others do not even look whether there is something to read."""
    for name, value in (("RANK", "1"), ("SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    done = invoke(*line.split())

    assert (done.exit_code, done.output) == (0, "")


def test_progress_is_shown_where_somebody_looks(monkeypatch):
    terminal = io.StringIO()
    small = ("bench", "fedavg", "--devices", 3, "--dim", 10, "--rounds", 1, "--output")
    quiet = hpcfl(*small, "a.h5")
    monkeypatch.setattr(launch, "terminal_for_progress", lambda: terminal)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    shown = hpcfl(*small, "b.h5")

    assert (quiet.returncode, shown.returncode) == (0, 0)
    assert "100%" not in quiet.stdout + quiet.stderr + shown.stdout
    assert "100%" in terminal.getvalue()


def test_too_little_memory_is_a_sentence(monkeypatch):
    def run(*_, **__):
        raise MemoryError

    monkeypatch.setattr("hpcfl.benchmark.session.run", run)
    done = hpcfl("bench", "fedavg", "--devices", 3, "--dim", 4)
    (said,) = done.stderr.splitlines()

    assert done.returncode in (1, 2)
    assert said.startswith("Error: ")
    assert "memory" in said
