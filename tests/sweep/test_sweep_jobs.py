from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfl.results import load
from hpcfl.results.reader import find

BIN = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(
    not (BIN / "mpirun").exists() and shutil.which("mpirun") is None,
    reason="no mpirun: install the extra 'mpi' or an MPI of your own",
)

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


LAUNCHER = (
    str(BIN / "mpirun") if (BIN / "mpirun").exists() else "mpirun",
    *("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n"),
)

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


def test_one_launch_does_all_numbers_of_devices(tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    command = [
        *(*LAUNCHER, "4"),
        *(sys.executable, "-m", "hpcfl", "sweep", str(plan), "--output", str(folder)),
    ]
    done = [subprocess.run(command, capture_output=True, text=True, timeout=200) for _ in range(2)]
    runs = [load(path) for path in find(folder)]

    # The refused cell is no success, but all others are done; the second launch finds them so.
    assert [job.returncode for job in done] == [1, 1], done[0].stderr + done[1].stderr
    assert sorted(run.devices for run in runs) == [2, 3, 7]
    assert {run.status for run in runs} == {"complete"}
    assert {run.environment["transport"] for run in runs} == {"mpi"}
    assert done[0].stdout.count("done in") == 3
    assert "Cells: 3 done, 1 failed" in done[0].stdout
    assert "Cells: 1 failed, 3 finished before" in done[1].stdout
    assert "Traceback" not in done[0].stderr


def test_only_the_rank_that_writes_loads_what_files_need(tmp_path: Path) -> None:
    # On a machine with a hundred ranks it would add seconds to every launch.
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text('[fixed]\ndim = 500\nrounds = 1\ndevices = 2\n[grid]\nprotocol = ["sparse"]\n')
    command = [*LAUNCHER, "3", sys.executable, "-c", SPY, "sweep", str(plan), "--output", folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200)
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))

    assert done.returncode == 0, done.stderr
    assert said == ["rank 0 h5py tabulate", "rank 1", "rank 2"]
