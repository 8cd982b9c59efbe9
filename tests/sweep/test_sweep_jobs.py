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


def test_one_launch_does_all_numbers_of_devices(tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    launcher = BIN / "mpirun" if (BIN / "mpirun").exists() else "mpirun"
    command = [
        *(str(launcher), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", "4"),
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
