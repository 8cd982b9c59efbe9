import sys

from launcher import hpcfl, mpirun, needs_mpirun

from hpcfl.results import load
from hpcfl.results.reader import find

pytestmark = needs_mpirun

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
