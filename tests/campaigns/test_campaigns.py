"""Short runs of the campaigns that are not tests themselves."""

import re

import chaos
import mpi_matrix
import mutants
import pytest
from launcher import needs_open_mpi_5


@pytest.mark.full
@needs_open_mpi_5
@pytest.mark.parametrize("kind", ["killed from outside", "server killed"])
def test_a_run_that_something_happens_to_leaves_nothing_behind_but_results(kind, tmp_path):
    plans = (chaos.draw(7, number) for number in range(10_000))
    plan = next(plan for plan in plans if plan.kind == kind and plan.ranks <= 8)

    assert chaos.play(plan, tmp_path) == []


def test_every_test_of_the_mpi_matrix_is_there():
    for tests in mpi_matrix.FEATURES.values():
        for test in tests:
            file, name = re.fullmatch(r"(\w+\.py)::(\w+)(?:\[\S+\])?", test).groups()
            assert f"def {name}(" in (mpi_matrix.MPIRUN / file).read_text()


@pytest.mark.full
def test_mutants_are_drawn_from_the_sources_that_must_be_guarded():
    chosen = mutants.drawn(400, 1)
    folders = {one.file.rpartition("/")[0] for one in chosen}

    assert folders == {
        *("hpcfl/crypto", "hpcfl/algorithms/aggregation", "hpcfl/privacy/accounting"),
        "hpcfl/rounds",
    }
    assert all(one.applied() for one in chosen[:5])
    assert all(mutants.stages(one.file, whole=True)[-1] == ["tests"] for one in chosen)
