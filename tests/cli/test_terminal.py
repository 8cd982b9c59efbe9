"""What all commands do alike."""

import io

import pytest
from commandline import hpcfl, invoke, refusal

from hpcfl.cli import COMMANDS
from hpcfl.system import launch

GROUPS = {
    "attack": ["components", "audit"],
    "data": ["fetch"],
    "optimize": ["fedsgd-dpc"],
    "privacy": ["exposure", "epsilon", "noise"],
    "slurm": ["render", "submit"],
}
LEAVES = [(name, *more) for name in COMMANDS for more in ([one] for one in GROUPS.get(name, [""]))]


def test_help_lists_every_command():
    done = hpcfl("--help")

    assert done.returncode == 0
    for name, about in COMMANDS.items():
        assert name in done.stdout
        assert about in " ".join(done.stdout.split())


def test_help_has_examples():
    for words in LEAVES:
        words = [word for word in words if word]
        done = hpcfl(*words, "--help")

        assert done.returncode == 0
        assert f"hpcfl {' '.join(words)}" in done.stdout or words == ["doctor"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("attack", "components", "round.npz"),
        ("attack", "audit", "cdp"),
        ("compare", "a", "b"),
        ("data", "fetch", "mnist"),
        ("merge", "a", "--output", "b"),
        ("plot", "a", "--kind", "phases"),
        ("predict", "nothing"),
        ("privacy", "epsilon", "nothing"),
        ("privacy", "exposure", "nothing"),
        ("report", "nowhere"),
        ("slurm", "render", "bench"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_one_rank_alone_answers(arguments, monkeypatch):
    """The others do not even look whether there is something to read."""
    for name, value in (("RANK", "1"), ("SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    done = invoke(*arguments)

    assert (done.exit_code, done.output) == (0, "")


def test_wrong_use_is_one_sentence_and_status_2(monkeypatch):
    for arguments, sentence in (
        (["nonsense"], "No such command 'nonsense'"),
        (["attack", "nonsense"], "No such command 'nonsense'"),
        (["bench"], "no protocol is given"),
        (["bench", "sparse", "--devices", "3,x"], "--devices is '3,x'; it must be whole numbers"),
        (["bench", "sparse", "--devices", "0"], "--devices is 0; it must be at least 1"),
        (["bench", "sparse", "--seed", "-1"], "--seed is -1; it must be at least 0"),
        (["bench", "sparse", "--devices", "2,3", "--output", "x.h5"], "let --output name a folder"),
        (
            ["bench", "sparse", "--devices", "2,3", "--save-aggregate", "x.npy"],
            "takes one number of",
        ),
        (["bench", "sparse", "--save-aggregate", "/proc/x.npy"], "cannot write /proc/x"),
        (["bench", "math:pi"], "'math:pi' must be a subclass of"),
        (["bench", "no_such_module:X"], "cannot be loaded"),
        (["bench", "sparse", "--keep-transcript", "x.npz"], "together with --insecure-seed"),
        (
            ["bench", "fedavg", "--insecure-seed", "1", "--keep-transcript", "x.npz"],
            "rounds of fedavg cannot be attacked",
        ),
        (
            ["bench", "sparse", "--insecure-seed", "1", "--keep-transcript", "/proc/x"],
            "cannot write /proc/x",
        ),
        (
            ["bench", "sparse", "--devices", "4,5", "--insecure-seed=1", "--keep-transcript=x"],
            "--keep-transcript takes one number of devices",
        ),
        (["attack", "components", "nowhere.npz"], "nowhere.npz cannot be read: No such file"),
        (["attack", "components", "/"], "cannot be read: Is a directory"),
        (["attack", "components"], "Missing argument 'TRANSCRIPT'"),
        (["attack", "components", "x", "--largest", "0"], "0 is not in the range"),
        (["attack", "audit", "fedavg"], "there is no private algorithm 'fedavg'"),
        (["attack", "audit", "cdp", "--sigma", "0"], "--sigma is 0"),
        (["attack", "audit", "cdp", "--runs", "1"], "--runs is 1"),
        (["attack", "audit", "locks", "--samples", "2"], "--samples is for"),
        (["attack", "audit", "cdp", "--per-round", "2"], "2 devices a round"),
        (["privacy", "epsilon", "nonsense", "--sigma", "1"], "no private algorithm 'nonsense'"),
        (["privacy", "epsilon", "cdp", "--sigma", "1"], "also needs"),
        (["privacy", "epsilon", "cdp", "foo", "--sigma", "1"], "unexpected extra argument (foo)"),
        (["privacy", "epsilon", "cdp", "--sgima", "1"], "Did you mean one of: '--dim', '--sigma'"),
        (["privacy", "noise", "cdp", "--epsilon", "1", "-z"], "No such option '-z'"),
        (
            ["privacy", "noise", "cdp", "--epsilon", "1", "--per-round", "2.5"],
            "Invalid value for '--per-round': '2.5' is not a whole number",
        ),
        (["privacy", "epsilon", "locks", "--sigma", "1", "--steps", "3"], "no setting"),
        (["privacy", "exposure", "sparse", "--gamma", "1/3", "--colluding", "3"], "give one of"),
        (["privacy", "exposure", "sparse", "--gamma", "2"], "--gamma is 2; it must be at least 0"),
        (["privacy", "exposure", "sparse", "--gamma", "2/3"], "66 of 100 devices collude"),
        (["privacy", "exposure", "sparse", "--gamma", "1/0"], "it must be a fraction like 1/3"),
        (["privacy", "exposure", "sparse", "--gamma", "nan"], "it must be a fraction like 1/3"),
        (["privacy", "exposure", "sparse", "--dropout", "0.5"], "below 0.5"),
        (
            ["privacy", "exposure", "sparse", "--alpha", "2"],
            "--alpha is 2.0; it must be above 0 and at most 1",
        ),
        (["privacy", "exposure", "secagg-graph"], "give a degree"),
        (["privacy", "exposure", "nothing"], "there is no protocol"),
        (["privacy", "exposure", "prf", "--dropout", "0.1"], "give --dropout 0"),
        (["privacy", "exposure", "secagg", "--plot", "e.png"], "so there is nothing to draw"),
        (["privacy", "exposure", "sparse", "--plot", "e.gif"], "does not end in .png, .svg or"),
        (["reproduce"], "name a table or figure"),
        (["reproduce", "nothing/at-all"], "there is no table or figure 'nothing/at-all'"),
        (
            ["reproduce", "queries/table-1", "--scale", "small"],
            "no scale of queries/table-1 called 'small'; choose one of paper",
        ),
        (["reproduce", "queries/table-1", "--plot", "a.png"], "--plot takes one artefact that has"),
        (["reproduce", "zcdp", "--plot", "a.png"], "--plot takes one artefact"),
        (["reproduce", "zcdp/figure-3", "--plot", "a.txt"], "does not end in"),
        (["reproduce", "zcdp/figure-3", "--data-dir", "nowhere"], "nowhere/adult does not exist"),
        (["reproduce", "sparse-secagg/figure-5"], "hpcfl data fetch mnist --data-dir DIR"),
        (["train", "fedavg", "--preset", "nonsense"], "choose one of sparse-secagg-mnist,"),
    ):
        monkeypatch.delenv("HPCFL_DATA", raising=False)

        assert sentence in refusal(*arguments)


def test_progress_is_shown_where_somebody_looks(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    small = ("--devices", 3, "--dim", 10, "--rounds", 1, "--warmup", 0)
    quiet = hpcfl("bench", "fedavg", *small, "--output", tmp_path / "a.h5")
    monkeypatch.setattr(launch, "terminal_for_progress", lambda: terminal)
    shown = hpcfl("bench", "fedavg", *small, "--output", tmp_path / "b.h5")

    assert (quiet.returncode, shown.returncode) == (0, 0)
    assert "100%" not in quiet.stdout + quiet.stderr + shown.stdout
    assert "fedavg" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
