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
        (["nonsense"], "there is no command 'nonsense'"),
        (["bench"], "no protocol is given"),
        (["bench", "sparse", "--devices", "3,x"], "--devices is '3,x'; it must be whole numbers"),
        (["bench", "sparse", "--devices", "0"], "--devices is 0; it must be at least 1"),
        (["bench", "sparse", "--devices", "2,3", "--output", "x.h5"], "let --output name a folder"),
        (["bench", "sparse", "--save-aggregate", "/proc/x.npy"], "cannot write /proc/x"),
        (["bench", "math:pi"], "'math:pi' must be a subclass of"),
        (["bench", "no_such_module:X"], "cannot be loaded"),
        (["bench", "sparse", "--keep-transcript", "x.npz"], "together with --insecure-seed"),
        (["attack", "components", "nowhere.npz"], "nowhere.npz cannot be read: No such file"),
        (["attack", "components"], "Missing argument 'TRANSCRIPT'"),
        (["attack", "audit", "fedavg"], "there is no private algorithm 'fedavg'"),
        (["privacy", "epsilon", "cdp", "--sigma", "1"], "also needs"),
        (["privacy", "epsilon", "cdp", "--sgima", "1"], "Did you mean one of: '--dim', '--sigma'"),
        (["privacy", "epsilon", "locks", "--sigma", "1", "--steps", "3"], "no setting"),
        (["privacy", "exposure", "sparse", "--gamma", "1/3", "--colluding", "3"], "give one of"),
        (["privacy", "exposure", "sparse", "--gamma", "2/3"], "66 of 100 devices collude"),
        (["privacy", "exposure", "secagg-graph"], "give a degree"),
        (["privacy", "exposure", "prf", "--dropout", "0.1"], "give --dropout 0"),
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
