"""Nothing that a user types, and nothing that a machine refuses, ends with a traceback."""

import errno
import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import click
import pytest
from commandline import hpcfl

import hpcfl as api
from hpcfl.cli import group
from hpcfl.errors import UsageError, explained
from hpcfl.options.bench import BenchOptions
from hpcfl.options.definition import make
from hpcfl.results import load
from hpcfl.system.streams import UNREAD_STATUS

LIMIT_SECONDS = 120
PRIVATE = ("--rounds=2", "--devices=4", "--per-round=2", "--batch-size=2", "--samples=8")
HUGE = "1" + 30 * "0"
# Numbers that nobody means, and what is typed besides.
ABSURD = [
    (("bench", "fedavg", "--devices=3", "--dim=4", "--rounds=1", "--warmup=0"), typed)
    for typed in (
        *(f"--devices={HUGE}", f"--dim={HUGE}", "--dim=-1", f"--rounds={HUGE}", "--rounds=nan"),
        *("--clip=1e308", "--dropout=nan", "--uplink-mbps=-1e308", f"--seed={5000 * '9'}"),
        *(f"--threads={HUGE}", "--max-seconds=1e308"),
    )
] + [
    (("train", "fedavg", "--devices=2", "--rounds=1"), "--learning-rate=1e308"),
    (("train", "fedavg", "--devices=2", "--rounds=1"), f"--batch-size={HUGE}"),
    (("train", "fedavg", "--devices=2", "--rounds=1"), "--epochs=nan"),
    (("predict", "fedavg", "--devices=3", "--dim=4"), "--latency-ms=nan"),
    (("predict", "fedavg", "--devices=3", "--dim=4"), f"--devices={HUGE}"),
    (("report", "good.h5"), "--uplink-mbps=nan"),
    (("compare", "good.h5", "good.h5"), "--fail-if-slower=1e308"),
    (("privacy", "exposure", "sparse", "--simulated=10"), f"--devices={HUGE}"),
    (("privacy", "exposure", "sparse", "--simulated=10"), "--alpha=1e308"),
    (("privacy", "epsilon", "cdp", *PRIVATE), "--sigma=1e308"),
    (("privacy", "epsilon", "cdp", "--sigma=1", *PRIVATE), f"--samples={HUGE}"),
    (("privacy", "noise", "cdp", *PRIVATE), "--epsilon=1e308"),
    (("privacy", "noise", "cdp", "--epsilon=1", *PRIVATE), "--delta=nan"),
    (("sweep", "plan.toml", "--dry-run"), f"--seed={HUGE}"),
    (("plot", "good.h5", "--kind=phases"), "--size=1e308"),
    (("attack", "audit", "dp-fedavg", "--runs=100"), "--sigma=1e308"),
    (("netlab", "--hosts=2", "--dry-run"), f"--hosts={HUGE}"),
    (("slurm", "render", "bench"), f"--ranks={5000 * '9'}"),
]


def commands(command=group, name=""):
    """Yield the names of all commands, and the commands."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    with command.make_context(name, ["nothing"], resilient_parsing=True) as context:
        for sub in command.list_commands(context):
            yield from commands(command.get_command(context, sub), f"{name} {sub}".strip())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder with results and a plan, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output="good.h5")
    Path("plan.toml").write_text('[fixed]\ndim = 4\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n')
    return tmp_path


def process(*arguments, memory=None, **more):
    """Run the program in a process of its own; `memory` bounds its address space, in bytes."""

    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return subprocess.run(
        [sys.executable, "-m", "hpcfl", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        preexec_fn=bound if memory else None,
        **more,
    )


def test_absurd_numbers_are_sentences(folder):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    for words, typed in ABSURD:
        others = [one for one in words if not one.startswith(typed.partition("=")[0])]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            done = hpcfl(*others, typed)
        said = [one for one in done.stderr.splitlines() if not one.lower().startswith("warning")]

        assert done.returncode in (0, 1, 2), (words, typed, done.stderr)
        assert len(said) == bool(done.returncode), (words, typed, done.stderr)
        assert "No such option" not in done.stderr
        # Python prints these with a line of the program.
        assert not [str(one.message) for one in warned], (words, typed)


def test_a_number_of_more_than_64_bits_is_refused():
    for name in (
        "rounds",
        "max_rounds",
        "warmup",
        "threads",
        "seed",
    ):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} "):
            make(BenchOptions, {"protocol": "fedavg", name: 2**64})


def test_too_little_memory_is_a_sentence(folder):
    for memory in (
        2**29,
        6 * 2**30,
    ):
        arguments = ("--devices", 5, "--dim", 4 * 10**9, "--rounds", 1, "--warmup", 0)
        done = process("bench", "fedavg", *arguments, memory=memory, stdout=subprocess.DEVNULL)

        assert done.returncode in (1, 2)
        assert "Traceback" not in done.stderr
        assert "memory" in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_a_library_that_does_not_fit_into_memory_is_a_sentence(folder):
    pytest.importorskip("torch")
    done = process("train", "fedavg", "--devices", 3, "--rounds", 1, memory=6 * 10**8)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "there is not enough memory" in done.stderr.splitlines()[-1]


def test_what_packages_warn_of_is_a_line_and_no_place_in_the_program(folder):
    pytest.importorskip("matplotlib")
    drawing = ("plot", "good.h5", "--kind", "phases", "--output")
    missing = process(*drawing, "a.pdf", "--title", "\u65e5", stdout=subprocess.DEVNULL)

    assert missing.returncode == 0
    (line,) = missing.stderr.splitlines()
    assert line.startswith("warning: Glyph 26085")


def test_what_a_machine_refuses_is_explained():
    for error, sentence in (
        (MemoryError(), "there is not enough memory: give fewer devices"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is not enough memory"),
        (RuntimeError("can't start new thread"), "there is not enough memory"),
        (ValueError("Maximum allowed dimension exceeded"), "there is not enough memory"),
        (OverflowError("int too large"), "a number is too large to count with (int too large)"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), "x: No space left on device"),
    ):
        assert str(explained(error)).startswith(sentence)


def test_mistakes_of_the_program_are_not_explained_away():
    for error in (
        ValueError("x"),
        KeyError("x"),
        RuntimeError(),
        OSError("x"),
    ):
        assert explained(error) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["report good.h5", "bench fedavg --devices 3 --dim 4"])
def test_a_full_output_is_a_sentence_and_work_is_done(command, folder):
    with open("/dev/full", "w") as full:
        done = process(*command.split(), stdout=full)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "Error: standard output cannot be written (No space left on device)"
    )
    assert all(load(path).status == "complete" for path in Path("results").glob("*.h5"))


def closed_after_a_line(*arguments):
    """Run the program, read a line of its output and close it; return the line and how it ended."""
    job = subprocess.Popen(
        [sys.executable, "-m", "hpcfl", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = job.stdout.readline()
    job.stdout.close()
    said = job.stderr.read()
    return line, job.wait(LIMIT_SECONDS), said


def test_a_training_goes_on_when_nobody_reads_its_output(folder):
    pytest.importorskip("torch")
    options = ("--devices", 3, "--rounds", 8, "--output", "run.h5")
    line, status, said = closed_after_a_line("train", "fedavg", *options)

    assert line.split()[0] == "round"
    assert status == UNREAD_STATUS
    assert "Traceback" not in said
    assert (load("run.h5").status, load("run.h5").rounds) == ("complete", 8)


def test_a_sweep_goes_on_when_nobody_reads_its_output(folder):
    plan = '[fixed]\ndim = 4\nrounds = 1\n[grid]\nprotocol = ["fedavg"]\ndevices = [2, 3, 4, 5]\n'
    Path("plan.toml").write_text(plan)
    _, status, said = closed_after_a_line("sweep", "plan.toml", "--output", "swept")

    assert status == UNREAD_STATUS, said
    assert sorted(load(path).devices for path in Path("swept").glob("*.h5")) == [2, 3, 4, 5]


def test_a_report_that_is_cut_off_says_nothing(folder):
    read = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    read.wait()
    done = process("report", "good.h5", "--json", stdout=read.stdin)

    assert (done.returncode, done.stderr) == (UNREAD_STATUS, "")


def test_output_that_is_read_arrives_whole(folder):
    done = process("report", "good.h5", "--json", stdout=subprocess.PIPE)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["runs"]) == 1
