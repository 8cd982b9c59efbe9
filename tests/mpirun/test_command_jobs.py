"""Jobs of other commands than `train`, and of what several ranks can get wrong in `bench`."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from launcher import HERE, assert_refused, bench, hpcfl, mpirun, needs_mpirun

from hpcfl.results import load
from hpcfl.results.reader import find

pytestmark = needs_mpirun


@pytest.mark.parametrize(
    "ranks", [5, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 8))]
)
def test_the_transport_tests_pass_under_mpirun(ranks):
    job = mpirun(
        ranks,
        *(sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"),
        *("--only-mpi", "--noconftest", HERE / "test_transports.py"),
    )

    assert job.returncode == 0, job.stdout[-5000:]
    assert " passed" in job.stdout
    assert "skipped" not in job.stdout


# The Python API

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
    done = mpirun(4, sys.executable, "-c", SCRIPT, tmp_path / "run.h5", tmp_path / "sweep")

    assert done.returncode == 0, done.stderr
    expected = [(True, True), (False, True), (False, True), (False, True)]
    assert done.stdout.strip() == f"3 4 {expected}"
    assert load(tmp_path / "run.h5").validated.all()


# Calibrations, figures of papers


@pytest.mark.full
def test_ranks_are_calibrated_and_predicted(tmp_path):
    path = tmp_path / "calibration.json"
    job = hpcfl(3, "calibrate", "--output", path)
    assert job.returncode == 0, job.stderr

    content = json.loads(path.read_text())
    options = ("--ranks", 3, "--calibration", path, "--json")
    predicted = hpcfl(1, "predict", "secagg", *options)

    assert content["ranks"] == 3
    assert set(content["links"]) == {"broadcast", "gather", "route"}
    assert all(alpha > 0 and min(betas) >= 0 for alpha, *betas in content["links"].values())
    (one,) = json.loads(predicted.stdout)["predictions"]
    assert one["total"]["measured_seconds"] > 0


# Stop rules: all ranks stop together, and the file says why


def test_all_ranks_stop_once_the_time_has_passed(tmp_path):
    options = ("--dim", 500, "--rounds", 2, "--warmup", 1)
    limits = ("--max-seconds", 0.001, "--max-rounds", 5000)
    (summary,) = bench(3, tmp_path, "secagg", *options, *limits)
    run = load(Path(summary["path"]))

    assert summary["stop_reason"] == run.environment["stop_reason"] == "max_seconds"
    # The time is over within the first round, which then is no warm-up.
    assert (summary["rounds_measured"], run.rounds) == (1, 1)
    assert (run.config["max_rounds"], run.config["max_seconds"]) == (5000, 0.001)
    assert run.environment["after_clock_seconds"] > run.environment["before_clock_seconds"]
    assert len(run.environment["after_clock_seconds"]) == 1
    # The space of the rounds that were not needed is cut off.
    assert run.path.stat().st_size < 10**6


def test_each_number_of_devices_stops_by_itself_and_says_why(tmp_path):
    rounds = ("--rounds", 6, "--warmup", 1, "--rel-ci", 0.999, "--max-rounds", 12)
    fedavg = ("bench", "fedavg", "--devices", "1,2", "--dim", 100)
    job = hpcfl(3, *fedavg, *rounds, "--output", tmp_path)

    assert job.returncode == 0, job.stderr
    runs = [load(path) for path in sorted(tmp_path.glob("*.h5"))]
    assert [run.devices for run in runs] == [1, 2]
    for run in runs:
        measured = int(run.measured.sum())
        reason = run.environment["stop_reason"]
        assert reason == ("rel_ci" if measured < 12 else reason)
        assert 6 <= measured <= 12
        assert f"({reason})" in job.stdout


# Transcripts

ROUND = ("--devices", 9, "--dim", 700, "--rounds", 1, "--warmup", 1)
KEEP = ("--gamma", 0.34, "--insecure-seed", 5, "--keep-transcript")


@pytest.mark.parametrize("protocol", ["secagg", "sparse", "cohort"])
def test_a_round_over_mpi_is_kept_as_one_in_a_process(tmp_path, protocol):
    files = [tmp_path / f"{ranks}.npz" for ranks in (1, 4)]
    for ranks, file in zip((1, 4), files, strict=True):
        sent = () if protocol == "secagg" else ("--alpha", 0.4)
        bench(ranks, tmp_path, protocol, *ROUND, *sent, *KEEP, file)
    one, many = map(np.load, files)

    assert one.files == many.files
    for name in set(one.files) - {"header"}:
        np.testing.assert_array_equal(one[name], many[name], err_msg=name)
    headers = [json.loads(file["header"].tobytes()) for file in (one, many)]
    for header in headers:
        assert header["config"].pop("keep_transcript").endswith(".npz")
    assert headers[0] == headers[1]

    job = hpcfl(1, "attack", "components", files[1], "--json")
    found = json.loads(job.stdout)
    assert (found["colluding"], found["dropped"], found["round_index"]) == (3, 2, 1)
    assert found["agrees"]
    assert (found["beyond"] > 0) == (protocol == "sparse")


def test_a_transcript_without_its_seed_is_refused_once(tmp_path):
    path = tmp_path / "round.npz"
    job = hpcfl(3, "bench", "sparse", *ROUND, "--keep-transcript", path)

    assert_refused(job, "together with --insecure-seed")
    assert not path.exists()


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
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    done = [hpcfl(4, "sweep", plan, "--output", folder) for _ in range(2)]
    runs = [load(path) for path in find(folder)]

    # The refused cell is not a success, but all others are done; the second launch finds them so.
    assert [job.returncode for job in done] == [1, 1], done[0].stderr + done[1].stderr
    assert sorted(run.devices for run in runs) == [2, 3, 7]
    assert {run.status for run in runs} == {"complete"}
    assert {run.environment["transport"] for run in runs} == {"mpi"}
    assert done[0].stdout.count("done in") == 3
    assert "Cells: 3 done, 1 failed" in done[0].stdout
    assert "Cells: 1 failed, 3 finished before" in done[1].stdout
    assert "Traceback" not in done[0].stderr


def test_only_the_rank_that_writes_loads_what_files_need(tmp_path):
    # On a machine with a hundred ranks it would add seconds to every launch.
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text('[fixed]\ndim = 500\nrounds = 1\ndevices = 2\n[grid]\nprotocol = ["sparse"]\n')
    done = mpirun(3, sys.executable, "-c", SPY, "sweep", plan, "--output", folder)
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))

    assert done.returncode == 0, done.stderr
    assert said == ["rank 0 h5py tabulate", "rank 1", "rank 2"]
