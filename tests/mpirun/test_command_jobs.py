"""Jobs of other commands, and of protocols of one's own."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from launcher import assert_refused, bench, hpcfl, mpirun, needs_mpirun, python
from run_files import cut

from hpcfl.results import load
from hpcfl.results.reader import find

pytestmark = needs_mpirun
ROOT = Path(__file__).parents[2]
SMALL = ("--dim", 60, "--rounds", 2, "--warmup", 0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def done(job):
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


SCRIPT = """
import sys
import hpcfl
from mpi4py import MPI

run = hpcfl.bench("secagg", dim=100, rounds=1, warmup=0, dropout=0.0, output=sys.argv[1])
try:
    hpcfl.bench("secagg", dim=100, dropout_phase="never")
except hpcfl.UsageError as error:
    refused = "there is no phase 'never'" in str(error)
try:
    hpcfl.sweep(
        {"protocol": ["fedavg", "prf"], "devices": 3, "dim": 9, "rounds": 1, "dropout": 0.4},
        output=sys.argv[2],
    )
except hpcfl.HpcflError as error:
    refused = refused and "1 of 2 combinations failed" in str(error)
ranks = MPI.COMM_WORLD.gather((run is not None, refused))
if run is not None:
    print(run.devices, run.environment["ranks"], ranks)
"""


def test_ranks_of_a_script_play_together(tmp_path):
    job = python(4, "-c", SCRIPT, tmp_path / "run.h5", tmp_path / "sweep")

    expected = [(True, True), (False, True), (False, True), (False, True)]
    assert done(job).strip() == f"3 4 {expected}"
    assert load(tmp_path / "run.h5").validated.all()


def test_all_ranks_stop_once_the_time_has_passed(tmp_path):
    limits = ("--max-seconds", 0.001, "--max-rounds", 5000, "--warmup", 1)
    (summary,) = bench(3, tmp_path, "secagg", *SMALL[:4], *limits)
    run = load(Path(summary["path"]))

    assert summary["stop_reason"] == run.environment["stop_reason"] == "max_seconds"
    # The time is over within the first round, which then is no warm-up.
    assert (summary["rounds_measured"], run.rounds) == (1, 1)
    assert run.environment["after_clock_seconds"] > run.environment["before_clock_seconds"]
    # The space of the rounds that were not needed is cut off.
    assert run.path.stat().st_size < 10**6


@pytest.mark.parametrize("protocol", ["secagg", "sparse"])
def test_a_round_over_mpi_is_kept_as_one_in_a_process(tmp_path, protocol):
    files = [tmp_path / f"{ranks}.npz" for ranks in (1, 4)]
    for ranks, file in zip((1, 4), files, strict=True):
        sent = () if protocol == "secagg" else ("--alpha", 0.4)
        keep = ("--gamma", 0.34, "--insecure-seed", 5, "--keep-transcript", file)
        bench(ranks, tmp_path, protocol, "--devices", 9, *SMALL[:4], *sent, *keep)
    one, many = map(np.load, files)

    assert one.files == many.files
    for name in set(one.files) - {"header"}:
        np.testing.assert_array_equal(one[name], many[name], err_msg=name)
    found = json.loads(done(hpcfl(1, "attack", "components", files[1], "--json")))
    assert found["agrees"]


# Sweeps

PLAN = """
[fixed]
dim = 500
rounds = 1
warmup = 0
[[grid]]
protocol = ["sparse"]
devices = [2, 3, 7]
[[grid]]
protocol = ["cohort"]
devices = [3]
min-cohort = [90]
[[grid]]
protocol = "fedavg"
devices-per-rank = 4
"""

# Runs the command of its arguments, then says what this rank has loaded.
SPY = """
import sys
from hpcfl.cli import main
try:
    main()
finally:
    from mpi4py import MPI
    loaded = sorted({"h5py", "tabulate", "pandas", "torch"} & set(sys.modules))
    print("rank", MPI.COMM_WORLD.rank, *loaded, flush=True)
"""


def test_one_launch_does_all_numbers_of_devices(tmp_path):
    """What a rank without the server loads would add seconds to every launch of a hundred."""
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    first = mpirun(4, sys.executable, "-c", SPY, "sweep", plan, "--output", folder)
    again = hpcfl(4, "sweep", plan, "--output", folder)
    runs = [load(path) for path in find(folder)]

    # The refused cell is not a success, but all others are done; the second launch finds them so.
    assert again.returncode == 1, first.stderr + again.stderr
    assert sorted(run.devices for run in runs) == [2, 3, 7, 12]
    assert {run.status for run in runs} == {"complete"}
    assert {run.environment["transport"] for run in runs} == {"mpi"}
    assert "Cells: 4 done, 1 failed" in first.stdout
    assert "Cells: 1 failed, 4 finished before" in again.stdout
    assert "Traceback" not in first.stderr
    said = sorted(line for line in first.stdout.splitlines() if line.startswith("rank "))
    assert [line.split()[2:] for line in said] == [["h5py", "tabulate"], [], [], []]


# Protocols, lengths and files of one's own


def test_the_protocol_of_the_examples_is_measured_and_trained_by_under_mpirun(folder):
    shutil.copy(ROOT / "examples/own_protocol.py", folder)
    done(hpcfl(4, "bench", "own_protocol:SignSum", *SMALL, "--output", "run.h5"))
    assert (load("run.h5").devices, bool(load("run.h5").validated.all())) == (3, True)

    # As many devices as there were, on however many ranks.
    cut("run.h5", 1)
    own = ("bench", "own_protocol:SignSum", "--resume", "run.h5")
    done(hpcfl(3, *own))
    assert (load("run.h5").rounds, load("run.h5").status) == (2, "complete")
    assert_refused(hpcfl(3, *own, "--seed", 1), "seed 0, not 1")
    pytest.importorskip("torch")
    train = ("fedavg", "--aggregate", "own_protocol:SignSum", "--devices", 4, "--rounds", 1)
    done(hpcfl(3, "train", *train, "--output", "train.h5"))
    assert load("train.h5").validated.all()


# Training

TRAIN = ("--epochs", 1, "--learning-rate", 0.1, "--devices", 3, "--rounds", 2, "--dropout", 0)
PRIVATE = ("--devices", 3, "--rounds", 2, "--dropout", 0)


@pytest.mark.parametrize(
    "options",
    [
        ("fedavg", "--aggregate", "sparse", "--per-round", 2, *TRAIN),
        ("top-k", *TRAIN[:-2]),
        # With noise that is not secret.
        ("cdp", "--aggregate", "secagg", "--steps", 2, "--sigma", 0.01, *PRIVATE),
        ("locks", "--variant", "local", "--per-round", 2, "--noise-multiplier", 0.1, *PRIVATE),
    ],
    ids=lambda options: "-".join(map(str, options[:3])),
)
def test_the_model_does_not_depend_on_the_number_of_ranks(tmp_path, options):
    pytest.importorskip("torch")
    models, told = [], []
    for ranks in (1, 2, 4):
        file = tmp_path / f"{ranks}.h5"
        again = ("--checkpoint-every", 2, "--insecure-seed", 1, "--output", file)
        done(hpcfl(ranks, "train", *options, *again))
        assert load(file).environment["host_ranks"] == [ranks]
        models.append(np.load(file.with_suffix(".checkpoint.npz"))["weights"].tolist())
        told.append(load(file).training.get("overlap", np.empty(0)).tolist())

    assert models[1:] == [models[0], models[0]]
    np.testing.assert_equal(told[1:], [told[0], told[0]])
