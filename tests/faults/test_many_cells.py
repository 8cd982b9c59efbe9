"""What is made for a cell is freed with it: MPI has room for some thousand communicators."""

import json
import sys

import pytest
from ulfm import HERE, job, mpirun, needs_mpirun, needs_ulfm

SIZES = [5, 2, 3, 1, 9, 4, 5, 2] * 3
PROGRAM = HERE / "many_cells.py"


def told(done):
    """Return the communicators after each cell and the devices that it reached."""
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(line).values()


@needs_mpirun
def test_cells_leave_no_communicators(tmp_path):
    after, reached = told(mpirun(4, sys.executable, PROGRAM, "[]", tmp_path / "sweep"))

    assert after == [1] * (len(SIZES) + 1)  # the world's own
    assert reached == SIZES


@needs_ulfm
@pytest.mark.parametrize("ranks", [4, pytest.param(7, marks=pytest.mark.full)])
def test_cells_that_could_survive_deaths_leave_none_either(ranks, tmp_path):
    after, reached = told(job(ranks, sys.executable, PROGRAM, "[]", tmp_path / "sweep"))

    assert after == [1] * (len(SIZES) + 1)
    assert reached == SIZES


@needs_ulfm
@pytest.mark.parametrize("point", ["inside", "freed"])
def test_of_a_death_only_the_communicators_of_the_dead_are_left(point):
    deaths = [[2, 4, point], [4, 6, point]]
    after, reached = told(job(6, sys.executable, PROGRAM, json.dumps(deaths)))

    assert after[:4] == [1] * 4
    # The world's own before each death; of a cell in which a rank died, that before it.
    assert after[-1] - 1 <= 2 * len(deaths)
    # Later cells leave none.
    assert after[6:] == [after[-1]] * len(after[6:])
    assert reached[7:] == SIZES[7:]
