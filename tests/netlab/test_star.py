import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from labs import BIN

HERE = Path(__file__).parent


@pytest.mark.skipif(
    not (BIN / "mpirun").exists() and shutil.which("mpirun") is None, reason="no mpirun"
)
@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 5))])
@pytest.mark.parametrize("kind", ["star", "patient"])
def test_the_star_and_ranks_that_sleep_do_what_mpi_does(ranks, kind, tmp_path):
    launcher = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", str(ranks)]
    program = [sys.executable, "-m", "mpi4py", HERE / "star_against_mpi.py", tmp_path, kind]
    done = subprocess.run(
        ["timeout", "-k", "5", "120", *launcher, *map(str, program)],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "all equal"
