"""Starts MPI jobs whose ranks may die, where MPI can go on without them."""

import sys
from pathlib import Path

from hpcfl.results import load

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "mpirun")]

from launcher import finish, needs_open_mpi_5, start  # noqa: E402

LIMIT_SECONDS = 120
# Which takes what `kill` returns, too.
HPCFL = (sys.executable, HERE / "killed.py")
ULFM = ("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--with-ft", "ulfm")


# Its builds have ULFM unless somebody leaves it out.
needs_ulfm = needs_open_mpi_5


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
