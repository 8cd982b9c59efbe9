"""No command overwrites a file that it did not make for that purpose."""

import ast
import json
import os
import re
import stat
from pathlib import Path

import click
import numpy as np
import pytest
from commandline import hpcfl, refusal

import hpcfl as api
from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.cli import COMMANDS, group
from hpcfl.cli.options import Output
from hpcfl.costmodel.calibration import Calibration
from hpcfl.errors import HpcflError
from hpcfl.results import load
from hpcfl.system import outputs

SMALL = ("--devices", 3, "--dim", 4, "--rounds", 1, "--warmup", 0)
CONSTANTS = (
    *("--devices", 10, "--dim", 7840, "--total-samples", 60000, "--gradient-norm", 18),
    *("--clip-norm", 300, "--smoothness", 1.05, "--convexity", 1),
    *("--heterogeneity", 0.5, "--distance", 600, "--per-round", 5),
)
# For every option that names a file or folder to write: its name there, and the rest of a command.
WRITES = {
    "bench --output": ("x.h5", "bench", "fedavg", *SMALL),
    "bench --save-aggregate": ("x.npy", "bench", "fedavg", *SMALL),
    "bench --keep-transcript": ("x.npz", "bench", "secagg", *SMALL, "--insecure-seed", 1),
    "train --output": ("x.h5", "train", "fedavg", "--devices", 2, "--rounds", 1),
    "sweep --output": ("x", "sweep", "plan.toml"),
    "merge --output": ("x", "merge", "good.h5"),
    "report --trace": ("x.json", "report", "good.h5"),
    "advise --plot": ("x.svg", "advise", "--calibration", "known.json"),
    "plot --output": ("x.png", "plot", "good.h5", "--kind", "phases"),
    "calibrate --output": ("x.json", "calibrate"),
    "optimize fedsgd-dpc --save-constants": ("x.json", "optimize", "fedsgd-dpc", *CONSTANTS),
    "optimize fedsgd-dpc --plot": ("x.svg", "optimize", "fedsgd-dpc", *CONSTANTS),
    "privacy exposure --plot": ("x.pdf", "privacy", "exposure", "sparse", "--simulated", 10),
    "reproduce --output": ("x", "reproduce", "sparse-secagg/table-1"),
    "reproduce --plot": ("x.svg", "reproduce", "sparse-secagg/figure-2"),
    "reproduce --document": ("x.md", "reproduce"),
    "data fetch --data-dir": ("x", "data", "fetch", "mnist", "--base-url", "http://localhost:9"),
}
# What is only read, or read and then continued in a form of its own.
READS = {
    *("bench --resume", "bench --updates", "train --resume", "train --data-dir"),
    *("predict --calibration", "advise --calibration", "optimize fedsgd-dpc --constants"),
    *("report --calibration", "plot --calibration"),
    *("optimize fedsgd-dpc --data-dir", "reproduce --data-dir", "doctor --results"),
}
# What goes into job scripts, for other machines.
TEXTS = {
    f"slurm {command} --{option}"
    for command in ("render", "submit")
    for option in ("activate", "directive", "output", "results")
}
FOLDERS = ("sweep --output", "merge --output", "reproduce --output", "data fetch --data-dir")
# What takes the place of an older one, and is quickly made.
REPLACED = [
    one
    for one in WRITES
    if one.startswith(("report", "plot", "optimize", "privacy", "reproduce --document"))
    # Who is first is found out for hundreds of settings.
]


def path_options(command, name):
    """Yield the options of a command, and of those within it, that a path is given to."""
    if isinstance(command, click.Group):
        with command.make_context(name, ["nothing"], resilient_parsing=True) as context:
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                yield from path_options(found, f"{name} {sub}".strip())
        return
    for option in command.params:
        if isinstance(option, click.Option):
            words = f"{option.metavar} {option.opts[0]}".upper()
            named = any(word in words for word in ("PATH", "FILE", "DIR", "FOLDER", "OUTPUT"))
            if named or isinstance(option.type, click.Path):
                yield f"{name} {option.opts[0]}", option


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder with results and a plan, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    api.bench("fedavg", devices=3, dim=4, rounds=1, warmup=0, output="good.h5")
    Path("plan.toml").write_text('[fixed]\ndim = 4\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n')
    return tmp_path


def contents(folder):
    """Return what is in a folder, without following links or reading from pipes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        regular = stat.S_ISREG(about.st_mode)
        linked = os.readlink(path) if path.is_symlink() else None
        found[path] = (about.st_mode, about.st_rdev, linked, path.read_bytes() if regular else None)
    return found


def put(what, path):
    """Let something be in the place of an output."""
    if what == "results":
        path.write_bytes(Path("good.h5").read_bytes())
    elif what == "a text":
        path.write_text("mine\n")
    elif what == "a link to nothing":
        path.symlink_to("nowhere")
    elif what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))  # as /dev/full
        except PermissionError:
            pytest.skip("only root makes device nodes")


def test_every_option_that_takes_a_path_is_known_here():
    options = dict(path_options(group, ""))
    written = {name for name, option in options.items() if isinstance(option.type, Output)}

    assert {name.split()[0] for name in options} <= COMMANDS.keys()
    assert written == WRITES.keys()
    assert options.keys() - written == READS | TEXTS


@pytest.mark.parametrize(
    "what", ["results", "a text", "a link to nothing", "a folder", "a pipe", "a device"]
)
@pytest.mark.parametrize("option", WRITES)
def test_what_is_there_stays_and_nothing_is_begun(option, what, folder):
    if option.startswith(("train", "reproduce")):
        pytest.importorskip("torch")
    if option in FOLDERS and what == "a folder":
        pytest.skip("files can be put into it")
    name, *command = WRITES[option]
    put(what, folder / name)
    before = contents(folder)

    assert name in refusal(*command, option.split()[-1], name)
    assert contents(folder) == before


@pytest.mark.parametrize("option", REPLACED)
def test_an_older_one_of_its_kind_is_replaced_and_folders_are_made(option, folder):
    pytest.importorskip("matplotlib")
    name, *command = WRITES[option]
    path = Path("new", "folder", name)
    for told in (str(path), f"{path} (replaced)"):
        done = hpcfl(*command, option.split()[-1], path)
        assert done.returncode == 0, done.stderr
        assert any(line.endswith(f": {told}") for line in done.stdout.split("\n")), done.stdout

    assert [one.name for one in path.parent.iterdir()] == [name]


def test_a_file_that_a_link_leads_to_is_replaced_and_not_the_link(folder):
    Path("trace.json").symlink_to("real/trace.json")
    Path("real").mkdir()
    hpcfl("report", "good.h5", "--trace", "real/trace.json")
    before = Path("real/trace.json").stat().st_ino

    assert "(replaced)" in hpcfl("report", "good.h5", "--trace", "trace.json").stdout
    assert Path("trace.json").is_symlink()
    assert Path("real/trace.json").stat().st_ino != before


def test_constants_that_were_written_are_read_again(folder):
    command = ("optimize", "fedsgd-dpc", *CONSTANTS, "--save-constants", "c.json", "--json")
    first = json.loads(hpcfl(*command).stdout)
    again = json.loads(
        hpcfl("optimize", "fedsgd-dpc", "--constants", "c.json", *CONSTANTS[-2:], "--json").stdout
    )

    assert again == first
    Path("c.json").write_text('{"format": "hpcfl-calibration/1"}')
    assert "--save-constants" in refusal("optimize", "fedsgd-dpc", "--constants", "c.json")


def test_a_calibration_replaces_a_calibration(folder):
    for cost in (1e-8, 2e-8):
        Calibration({name: [cost] for name in OPERATIONS}).save(Path("c.json"))

    assert json.loads(Path("c.json").read_text())["cpu_seconds"]["mask_word"] == [2e-8]
    Path("c.json").write_text('{"format": "another/1"}')
    with pytest.raises(HpcflError, match="not one of hpcfl's calibrations"):
        Calibration({}).save(Path("c.json"))


@pytest.mark.parametrize("option", ["bench --save-aggregate", "bench --keep-transcript"])
def test_what_was_measured_is_never_overwritten(option, folder):
    name, *command = WRITES[option]
    assert hpcfl(*command, option.split()[-1], name).returncode == 0
    before = contents(folder)

    assert "never overwritten" in refusal(*command, option.split()[-1], name)
    assert contents(folder) == before


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


# Where files are opened for writing: the one way for all outputs, the results file, which is
# written in place, and files that nobody names: settings, probes, folders made for one purpose.
WRITERS = {
    *("system/outputs.py", "results/writer.py", "system/mpiconfig.py", "sweeping/merge.py"),
    *("netlab/launcher.py", "system/kernel.py", "system/hdf5.py"),
}
# What writes to a file that is open, or to a path; what `outputs.writing` yields is called `file`.
TAKES_EITHER = ("np.save", "np.savez", "np.savez_compressed", "figure.savefig", "h5py.File")


def writes(call):
    """Return whether a call opens a file for writing, or writes one."""
    called = ast.unparse(call.func)
    words = [ast.unparse(one) for one in (*call.args, *(key.value for key in call.keywords))]
    if called == "open" or (called.endswith(".open") and called != "os.open"):
        return any(re.fullmatch("'[rb]*[wax+][bt+]*'", word) for word in words)
    if called in TAKES_EITHER:
        return words[0] not in ("file", "text") and "'r'" not in words
    return called.endswith((".write_text", ".write_bytes")) or called.startswith("shutil.copyfile")


def test_files_are_written_nowhere_else():
    package = Path(outputs.__file__).parent.parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and writes(node)
    }

    assert found == WRITERS


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "fedavg", *SMALL, "--output", "x.h5", "--save-aggregate", "./x.h5"),
        ("bench", "fedavg", *SMALL, "--output", "out", "--save-aggregate", "out"),
        ("bench", "fedavg", *SMALL, "--output", "x.h5", "--save-aggregate", "x.h5/sum.npy"),
        (
            *("bench", "secagg", *SMALL, "--insecure-seed", 1),
            *("--keep-transcript", "x.npz", "--save-aggregate", "linked/x.npz"),
        ),
        (
            *("optimize", "fedsgd-dpc", *CONSTANTS),
            *("--save-constants", "x.svg", "--plot", "x.svg"),
        ),
    ],
)
def test_two_outputs_of_one_name_are_refused_before_any_work(folder, command):
    Path("linked").symlink_to(".")
    before = contents(folder)

    assert "one file cannot be both" in refusal(*command)
    assert contents(folder) == before


def test_an_aggregate_can_go_into_the_folder_of_the_results(folder):
    api.bench("fedavg", devices=3, dim=4, rounds=1, output="out", save_aggregate="out/sum.npy")

    assert len([*Path("out").iterdir()]) == 2


def test_every_figure_that_a_command_draws_has_a_size(folder):
    pytest.importorskip("matplotlib")
    options = {name for name, _ in path_options(group, "")}
    drawn = {name.rsplit(" ", 1)[0] for name in options if name.endswith(" --plot")} | {"plot"}
    for name in sorted(drawn):
        command, words = group, name.split()
        while words:
            command = command.get_command(click.Context(command), words.pop(0))
        assert "--size" in {one.opts[0] for one in command.params}, name
    _, *command = WRITES["privacy exposure --plot"]
    for size, points in (("column", "239.76pt"), ("page", "504pt")):
        assert hpcfl(*command, "--plot", f"{size}.svg", "--size", size).returncode == 0
        assert f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="{points}"' in (
            Path(f"{size}.svg").read_text()
        )
    assert "give column or page" in refusal(*command, "--plot", "x.svg", "--size", "0x3")
