"""No command waits for an input that never comes, or reads one that never ends."""

import ast
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from commandline import hpcfl
from test_no_traceback import commands
from test_outputs import CONSTANTS, READS

import hpcfl as api
from hpcfl.errors import UsageError
from hpcfl.system import files

LIMIT_SECONDS = 60
# For every option and argument that names a file to read: its name there, and the command line.
FILES = {
    "bench --resume": ("x.h5", "bench", "fedavg", "--resume", "x.h5"),
    "bench --updates": ("x.npy", "bench", "fedavg", "--updates", "x.npy"),
    "bench --updates (HDF5)": ("x.h5", "bench", "fedavg", "--updates", "x.h5"),
    "train --resume": ("x.npz", "train", "fedavg", "--resume", "x.npz"),
    "predict --calibration": (
        *("x.json", "predict", "fedavg", "--devices", 3, "--dim", 4),
        *("--calibration", "x.json"),
    ),
    "advise --calibration": ("x.json", "advise", "--calibration", "x.json"),
    "report --calibration": (
        *("x.json", "report", "good.h5", "--speed-up", "ranks"),
        *("--continue-to", 100, "--calibration", "x.json"),
    ),
    "plot --calibration": (
        *("x.json", "plot", "good.h5", "--kind", "scaling", "--against", "ranks"),
        *("--continue-to", 100, "--calibration", "x.json"),
    ),
    "plot --style": ("x", "plot", "good.h5", "--kind", "phases", "--style", "x"),
    "optimize fedsgd-dpc --constants": (
        *("x.json", "optimize", "fedsgd-dpc", "--constants", "x.json", *CONSTANTS[-2:]),
    ),
    "sweep plan": ("x.toml", "sweep", "x.toml"),
    "merge paths": ("x.h5", "merge", "x.h5", "--output", "new"),
    "report paths": ("x.h5", "report", "x.h5"),
    "compare a": ("x.h5", "compare", "x.h5", "good.h5"),
    "compare b": ("x.h5", "compare", "good.h5", "x.h5"),
    "attack components transcript": ("x.npz", "attack", "components", "x.npz"),
    "plot paths": ("x.h5", "plot", "x.h5", "--kind", "phases"),
}
# What is read without being named, because of its place.
BESIDE = {
    "an option of a plan": ("x.npy", "sweep", "updates.toml"),
    "the manifest of a sweep": ("swept/sweep.json", "sweep", "plan.toml", "--output", "swept"),
}
# Folders of data sets and results, whose files are opened as all others; see the last tests.
INTO = {"train --data-dir", "optimize fedsgd-dpc --data-dir"}
INTO |= {"doctor --results"}
# Arguments that are names of something, or command lines of their own.
NAMES = {"protocol", "algorithm", "name", "names", "more", "arguments", "kind", "shell"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder with results and plans, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output="good.h5")
    plan = '[fixed]\n{}\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n'
    Path("plan.toml").write_text(plan.format("dim = 4"))
    Path("updates.toml").write_text(plan.format('updates = "x.npy"'))
    return tmp_path


def put(kind, path):
    """Put something in the place of a file that nobody should wait for."""
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    else:
        path.symlink_to("/dev/zero")


def test_every_argument_and_option_that_reads_a_file_is_tried_here():
    tried = {name.partition(" (")[0] for name in FILES} | INTO
    arguments = {
        f"{name} {one.name}"
        for name, command in commands()
        for one in command.params
        if isinstance(one, click.Argument) and one.name not in NAMES
    }

    assert tried - arguments - {"plot --style"} == READS
    assert arguments <= tried


@pytest.mark.parametrize("name", [*FILES, *BESIDE])
def test_a_pipe_that_nobody_writes_to_is_refused_at_once(name):
    if name.startswith(("train", "plot", "report --cal")):
        pytest.importorskip("torch")
        pytest.importorskip("matplotlib")
    place, *command = (FILES | BESIDE)[name]
    put("pipe", Path(place))
    # In a process that can be killed: what waits in a library hears of no signal.
    done = subprocess.run(
        [sys.executable, "-m", "hpcfl", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    *_, last = done.stderr.splitlines()

    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert re.match(rf"Error: (.*: )?{re.escape(place)} is a pipe", last)


@pytest.mark.parametrize("kind", ["socket", "device"])
@pytest.mark.parametrize("name", [*FILES, *BESIDE])
def test_sockets_and_devices_are_refused(name, kind):
    if name.startswith(("train", "plot", "report --cal")):
        pytest.importorskip("torch")
        pytest.importorskip("matplotlib")
    place, *command = (FILES | BESIDE)[name]
    put(kind, Path(place))
    done = hpcfl(*command)

    assert done.returncode in (1, 2)
    assert f"{place} is a {kind}, and not a file that can be read" in done.stderr


def test_what_is_no_file_within_a_folder_is_passed_over():
    Path("runs").mkdir()
    Path("good.h5").rename("runs/good.h5")
    put("pipe", Path("runs/pipe.h5"))
    put("device", Path("runs/zero.h5"))
    done = hpcfl("merge", "runs", "--output", "new")

    assert (done.returncode, done.stderr) == (0, "")
    assert {one.name for one in Path("new").iterdir()} == {"good.h5", "index.json"}


@pytest.mark.parametrize(
    "place",
    [
        *("mnist/train-images-idx3-ubyte", "adult/adult.data", "femnist/train/a.json"),
        "cifar10/cifar-10-batches-py/data_batch_1",
    ],
)
def test_a_pipe_in_the_place_of_a_data_set_is_not_waited_for(place, folder):
    pytest.importorskip("torch")
    path = folder / "data" / place
    path.parent.mkdir(parents=True)
    put("pipe", path)
    name = place.partition("/")[0]
    command = [sys.executable, "-m", "hpcfl", "train", "fedavg"]
    done = subprocess.run(
        [*command, "--devices", "2", "--rounds", "1", "--data-dir", "data", "--dataset", name],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"data/{name}" in done.stderr.splitlines()[-1]


def test_what_another_program_writes_to_a_pipe_is_read():
    received, sent = os.pipe()

    def write():
        with open(sent, "wb", buffering=0) as pipe:
            for part in (b"[fixed]", b"\n", b"dim = 4\n"):
                pipe.write(part)
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # As a shell calls it, of hpcfl sweep <(make-plan).
        assert files.text(Path(f"/dev/fd/{received}")) == "[fixed]\ndim = 4\n"
    finally:
        writer.join()
        os.close(received)


@pytest.mark.parametrize("written", [b"", b"[fixed]"])
def test_a_pipe_whose_writer_does_not_go_on_is_refused(written, monkeypatch):
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.1)
    received, sent = os.pipe()
    os.write(sent, written)
    with pytest.raises(UsageError, match=r"to which nothing was written for 0\.1 s"):
        files.contents(Path(f"/dev/fd/{received}"), 100)
    os.close(sent)
    os.close(received)


def test_a_pipe_is_read_up_to_the_bound():
    received, sent = os.pipe()
    os.write(sent, bytes(101))
    with pytest.raises(ValueError, match="exceeds the limit of 100 bytes"):
        files.contents(Path(f"/dev/fd/{received}"), 100)
    os.close(sent)
    os.close(received)


# Where files are opened for reading by other means: hpcfl's own, those that were just written or
# looked at, and what the system says of itself.
READERS = {
    *("system/files.py", "system/outputs.py", "system/kernel.py", "system/launch.py"),
    *("system/revision.py", "system/mpiconfig.py", "netlab/lab.py", "slurm/script.py"),
    "sweeping/shipped.py",
    # Each after `files.require` or `files.opened` has looked at the path.
    *("system/hdf5.py", "rounds/input_files.py"),
    # A download that it has written itself.
    "learning/fetch.py",
}
OPENERS = {"open", "h5py.File", "ZipFile", "np.load", "np.memmap", "tarfile.open", "gzip.open"}


def reads(call):
    """Return whether a call opens a file for reading, and not one that is open already."""
    called = ast.unparse(call.func)
    words = [ast.unparse(one) for one in (*call.args, *(key.value for key in call.keywords))]
    if any(re.fullmatch("'[rb]*[wax+][bt+]*'", word) for word in words):
        return False
    if called in OPENERS or called.endswith("path.open"):
        return not words or words[0] not in ("file", "raw")
    return called.endswith((".read_text", ".read_bytes")) or "path.open('rb')" in words


def test_files_are_opened_for_reading_nowhere_else():
    package = Path(files.__file__).parent.parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and reads(node)
    }

    assert found == READERS
