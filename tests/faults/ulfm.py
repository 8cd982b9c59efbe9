"""Starts MPI jobs whose ranks may die, where MPI can go on without them."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from hpcfl.results import load

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "mpirun")]

from launcher import BIN, environment, finish, start  # noqa: E402

LIMIT_SECONDS = 120
# Which takes what `kill` returns, too.
HPCFL = (sys.executable, HERE / "killed.py")
ULFM = ("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--with-ft", "ulfm")


@cache
def has_ulfm():
    """Return whether Open MPI says of itself that it was built with ULFM."""
    if not (BIN / "ompi_info").exists() and shutil.which("ompi_info") is None:
        return False
    done = subprocess.run(
        ["ompi_info", "--all"], capture_output=True, text=True, timeout=60, env=environment()
    )
    return "mpi_ft_enable" in done.stdout


needs_ulfm = pytest.mark.skipif(
    not has_ulfm(), reason="no mpirun --with-ft ulfm: install the extra 'mpi', or Open MPI 5"
)


def job(ranks, *command):
    """Run a command under mpirun; the test fails if it does not end in time."""
    return finish(start(*ULFM, "-n", ranks, *command), LIMIT_SECONDS)


def kill(rank, phase, round_index, moment="before"):
    """Return the option that lets ranks die."""
    return "--kill", f"rank={rank},phase={phase},round={round_index},moment={moment}"


def bench(folder, ranks, *options):
    """Run `hpcfl bench` and return the job and its results, of which there is one file."""
    done = job(ranks, *HPCFL, "bench", *options, "--output", folder)
    (path,) = folder.glob("*.h5")
    assert "Traceback" not in done.stderr
    return done, load(path)
