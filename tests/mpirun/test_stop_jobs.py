"""Stop rules under mpirun: all ranks stop together, and the file says why."""

from pathlib import Path

from launcher import bench, hpcfl, needs_mpirun

from hpcfl.results import load

pytestmark = needs_mpirun


def test_all_ranks_stop_once_the_time_has_passed(tmp_path):
    options = ("--dim", 500, "--rounds", 2, "--warmup", 1)
    limits = ("--max-seconds", 0.001, "--max-rounds", 5000)
    (summary,) = bench(3, tmp_path, "secagg", *options, *limits)
    run = load(Path(summary["path"]))

    assert summary["stop_reason"] == run.environment["stop_reason"] == "max_seconds"
    assert (summary["rounds_measured"], run.rounds) == (2, 3)
    assert (run.config["max_rounds"], run.config["max_seconds"]) == (5000, 0.001)
    assert run.environment["after_clock_seconds"] > run.environment["before_clock_seconds"]
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
