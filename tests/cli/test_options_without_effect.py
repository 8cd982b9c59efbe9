"""An option that is typed changes what a command finds, or is refused: none is ignored.

Those of bench and train, by protocol and algorithm: tests/options/test_usage.py.
"""

import re
import shlex
from pathlib import Path

import click
import pytest
from commandline import hpcfl, refusal
from test_no_traceback import commands

import hpcfl as api
from hpcfl.algorithms.aggregation.costs import OPERATIONS
from hpcfl.cli import group
from hpcfl.costmodel.calibration import Calibration
from hpcfl.costmodel.overheads import OVERHEADS

CONSTANTS = (
    "--devices 10 --dim 784 --total-samples 60000 --gradient-norm 18 --clip-norm 300 "
    "--smoothness 1.05 --convexity 1 --heterogeneity 0.5 --distance 600"
)
# Command lines whose options are tried one after the other.
CONTEXTS = {
    "advise": "advise --calibration known.json",
    "advise with more": "advise --calibration known.json --epsilon 8 --helpers 2",
    "optimize": f"optimize fedsgd-dpc {CONSTANTS}",
    "optimize gaussian": f"optimize fedsgd-dpc --mechanism gaussian {CONSTANTS} --variance 2",
    "epsilon of cdp": "privacy epsilon cdp --sigma 0.1 --rounds 20 --devices 16 --per-round 10 "
    "--batch-size 32 --samples 2441",
    "epsilon of dp-fedavg": "privacy epsilon dp-fedavg --sigma 1.3 --rounds 50 --devices 100 "
    "--per-round 20",
    "epsilon of locks": "privacy epsilon locks --sigma 5 --rounds 50 --devices 100 "
    "--first-stage 30 --per-round 20",
    "epsilon of fedsgd-dpc": "privacy epsilon fedsgd-dpc --sigma 0.05 --rounds 50 --devices 10 "
    "--per-round 3 --samples 6000",
    "exposure of fedavg": "privacy exposure fedavg --simulated 10",
    "exposure of sparse": "privacy exposure sparse --simulated 10",
    "audit of cdp": "attack audit cdp --runs 20 --devices 3 --per-round 2",
    "audit of locks": "attack audit locks --runs 20",
    "report": "report secagg.h5 fedavg.h5",
    "trace": "report secagg.h5 --trace trace.json",
    "plot": "plot secagg.h5 fedavg.h5 --kind phases --output figure.svg",
    "render bench": "slurm render bench",
    "render train": "slurm render train",
}
# Another value for each of their options; "" for a flag.
VALUES = {
    "accuracy": "0.01", "account": "me", "absent": "1", "activate": "env", "aggregate": "secagg",
    "against": "dim", "alpha": "0.3", "array": "0-3", "baseline": "fedavg.h5", "batch-size": "16",
    "c2": "2", "calibration": "other.json", "clip-norm": "2", "clock": "wall", "colluding": "3",
    "columns": "protocol", "confidence": "0.9", "constants": "constants.json",
    "continue-to": "7", "convex": "", "network-gbps": "10", "network-us": "5", "speed-up": "ranks",
    "convexity": "0.9", "data-dir": ".", "dataset": "digits",
    "degree": "6", "delta": "1e-3", "devices": "13", "dim": "99", "directive": "qos=debug",
    "discrete": "", "distance": "9", "downlink-mbps": "3", "dropout": "0.2",
    "dropout-model": "bernoulli", "epsilon": "3", "estimate-steps": "3", "exact-dropouts": "",
    "failure": "1e-7", "first-stage": "25", "first-stages": "3", "floor": "3", "for": "upload",
    "format": "markdown", "fraction": "0.5", "gamma": "0.2", "gradient-norm": "9",
    "helper-mbps": "3", "helpers": "3", "heterogeneity": "0.1", "honest": "3",
    "integer-sigma": "30", "job-name": "mine", "json": "", "kind": "scaling",
    "label": "secagg=Masks", "latency-ms": "30", "launcher": "srun", "lead": "60",
    "learning-rate": "0.3", "lipschitz": "1.5", "log-x": "", "max-exposed": "1",
    "max-rounds": "7", "mechanism": "laplace", "mem": "3G", "model": "softmax@digits",
    "module": "mpi", "mpi": "pmix", "no-pool": "", "nodes": "2", "noise": "distributed",
    "ntasks": "7", "ntasks-per-node": "3", "output": "other.svg", "over": "uplink-mbps",
    "participations": "5", "partition": "shards", "per-round": "1", "plot": "who.svg",
    "protocol": "m:C", "ranks": "3", "record-sampling": "fixed", "replayed": "1", "replies": "4",
    "requeue": "", "results": "there", "resumes": "2", "round": "1", "rounds": "7", "runs": "30",
    "sampling": "poisson", "samples": "40", "save-constants": "c.json", "secagg": "",
    "secret-order": "", "security": "active", "seed": "7", "server-node": "", "share-nodes": "",
    "shuffle": "continuing", "sigma": "2", "sigma-count": "30", "sigma-norms": "3",
    "simulated": "20", "size": "column", "smoothness": "2", "spread": "box", "steps": "2",
    "style": "talk", "target-accuracy": "0.5", "time": "2:00:00", "title": "mine",
    "torch-device": "cpu", "total-samples": "900", "trace": "other.json", "unit": "1000",
    "uplink-mbps": "3", "variance": "3", "variant": "trusted", "where": "protocol=secagg",
}  # fmt: skip
# Where that value is the one without the option, or all that it would say is said already.
SAME = {
    ("advise with more", "accuracy"),  # there are more levels beside the noise than it takes
    ("advise with more", "helpers"),  # none can add the noise
    ("optimize", "constants"),
    ("optimize", "max-rounds"),
    ("optimize", "mechanism"),
    ("optimize", "variance"),  # --save-constants keeps it, for Gaussian noise
    ("optimize gaussian", "constants"),
    ("epsilon of cdp", "secagg"),
    ("epsilon of dp-fedavg", "sampling"),
    ("epsilon of locks", "variant"),
    ("epsilon of fedsgd-dpc", "mechanism"),
    ("audit of locks", "per-round"),
    ("audit of locks", "sampling"),
    ("report", "no-pool"),
    ("trace", "no-pool"),
    ("trace", "where"),
    ("plot", "no-pool"),
}


def options_of(line):
    """Return the names of a command's options, without dashes, and the command."""
    command, words = group, shlex.split(line)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    return {
        one.opts[0].removeprefix("--")
        for one in command.params
        if isinstance(one, click.Option) and not one.is_eager
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with results of two protocols, calibrations and constants."""
    folder = tmp_path_factory.mktemp("options")
    for name in ("secagg", "fedavg"):
        api.bench(name, devices=3, dim=4, rounds=2, warmup=0, output=folder / f"{name}.h5")
    for name, seconds in (("known", 1e-8), ("other", 1e-7)):
        known = Calibration({one: [seconds] for one in (*OPERATIONS, *OVERHEADS)})
        known.save(folder / f"{name}.json")
    (folder / "constants.json").write_text('{"l1_clip": 3, "variance": 7, "dim": 55}')
    return folder


def done(words):
    """Run a command line; return its status, and all that it prints and writes."""
    before = set(Path().iterdir())
    found = hpcfl(*words)
    written = {path.name: path.read_bytes() for path in set(Path().iterdir()) - before}
    for name in written:
        Path(name).unlink()
    return found, (found.stdout, found.stderr, written)


def test_every_option_has_another_value_here():
    missing = {name for line in CONTEXTS.values() for name in options_of(line) - VALUES.keys()}

    assert missing == set()


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_option_changes_something_or_is_refused(context, folder, monkeypatch):
    if context == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    words = shlex.split(CONTEXTS[context])
    plain, before = done(words)
    assert plain.returncode == 0, plain.stderr
    ignored = []
    for name in sorted(options_of(CONTEXTS[context])):
        if name in ("plot", "torch-device", "dataset") or (context, name) in SAME:
            continue  # slow, or not everywhere
        end = words.index("--") if "--" in words else len(words)
        given = [f"--{name}", *([VALUES[name]] if VALUES[name] else [])]
        found, after = done([*words[:end], *given, *words[end:]])
        assert "Traceback" not in found.stderr
        if found.returncode == 0 and after == before:
            ignored.append(name)
        elif found.returncode not in (0, 1):
            assert found.returncode == 2, (name, found.stderr)

    assert ignored == []


def test_a_label_of_no_run_and_another_run_of_nothing_are_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    drawn = hpcfl(
        "plot", "secagg.h5", "--kind", "phases", "--label", "sparse=x", "--output", "x.svg"
    )

    assert drawn.returncode == 2
    assert "'sparse'" in drawn.stderr
    assert not Path("x.svg").exists()


def test_nothing_is_typed_in_vain_beside_what_shows_something_and_stops(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("plan.toml").write_text('[fixed]\ndim = 4\n[grid]\nprotocol = ["fedavg"]\ndevices = 3\n')
    stopping = [
        (name, one)
        for name, command in commands()
        for one in command.params
        if isinstance(one, click.Option) and re.search("Show .* and stop", one.help or "")
    ]
    assert {name for name, _ in stopping} == {"sweep"}
    beside = {
        "sweep": ["plan.toml", "--dry-run", "--freeze", "--no-shuffle", "--output=x", "--seed=1"],
    }
    for name, option in stopping:
        assert hpcfl(*name.split(), *option.opts).returncode == 0
        for other in beside[name]:
            for words in ([*option.opts, other], [other, *option.opts]):
                said = refusal(*name.split(), *words)
                assert f"{option.opts[0]} shows" in said
                assert said.endswith(f"leave {other.partition('=')[0]} out")
    assert sorted(path.name for path in folder.glob("x*")) == []
    assert "give only one of" in refusal("netlab", "--hosts", 2, "--check", "--dry-run")


def test_a_sweep_of_no_plan_says_where_there_are_some():
    assert "or one of those that --list shows" in refusal("sweep")
