"""Short forms of the campaigns, and proof that their checks can fail."""

import os
import re
import shutil
import subprocess
import sys

import chaos
import h5py
import mpi_matrix
import mutants
import pytest
from chaos import BIN, MARK, Outcome, Plan, complaints, draw, examine, left_behind

full = pytest.mark.full


def first(kind):
    """Return the first small run of a kind."""
    plans = (draw(7, number) for number in range(10_000))
    return next(plan for plan in plans if plan.kind == kind and plan.ranks <= 8)


@full
@pytest.mark.parametrize(
    "kind",
    [
        *("killed by option", "killed from outside", "killed while another is stopped"),
        *("server killed", "told to leave"),
    ],
)
def test_a_run_that_something_happens_to_leaves_nothing_behind_but_results(kind, tmp_path):
    plan = first(kind)
    if chaos.mpirun() is None:
        pytest.skip("no mpirun")

    assert chaos.play(plan, tmp_path).wrong == []


@full
def test_the_checks_of_chaos_can_fail(tmp_path, monkeypatch):
    def of(rounds):
        return Plan(0, "nothing", "secagg", 5, 8, 50, rounds)

    finished, path = tmp_path / "run.h5", tmp_path / "wrong.h5"
    size = ["--devices", "8", "--dim", "50", "--rounds", "4", "--warmup", "0"]
    bench = [BIN / "hpcfl", "bench", "secagg", *size, "--output", finished]
    subprocess.run(bench, check=True, capture_output=True)
    assert examine(of(4), Outcome(of(4), 0, 1.0), finished) == []
    for status, claim in ((0, "complete with 4 rounds"), (1, "called complete with 4 of 5 rounds")):
        [said] = examine(of(5), Outcome(of(5), status, 1.0), finished)
        assert claim in said
    assert examine(of(4), Outcome(of(4), 0, 1.0), path) == ["there is no results file"]
    shutil.copy(finished, path)
    with h5py.File(path, "r+") as file:
        file["rounds/validated"][2] = False
    [said] = examine(of(4), Outcome(of(4), 0, 1.0), path)
    assert "rounds [2] are not validated" in said
    assert complaints(of(4), 0, "") == []
    assert "status 1" in complaints(of(4), 1, "Error: no")[0]
    assert "still running" in complaints(of(4), -1, "")[0]
    assert "a traceback" in complaints(of(4), 0, "Traceback (most recent call last):")[0]
    monkeypatch.setattr(chaos, "LEFT_BEHIND_SECONDS", 0.2)
    mark = f"test-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
    )
    try:
        # Until the new program has begun, its environment may read as empty.
        process.stdout.readline()
        [said] = left_behind(mark)
        assert "1 processes were left" in said
    finally:
        process.kill()
        process.wait()


def test_every_kind_of_run_is_drawn_and_always_the_same():
    plans = [draw(1, number) for number in range(200)]

    assert {plan.kind for plan in plans} == set(chaos.KINDS)
    assert plans == [draw(1, number) for number in range(200)]


def test_every_test_of_the_mpi_matrix_is_there():
    for tests in mpi_matrix.FEATURES.values():
        for test in tests:
            file, name = re.fullmatch(r"(\w+\.py)::(\w+)(?:\[\S+\])?", test).groups()
            assert f"def {name}(" in (mpi_matrix.MPIRUN / file).read_text()


def test_mutants_are_drawn_from_the_sources_that_must_be_guarded():
    chosen = mutants.drawn(400, 1)
    folders = {one.file.rpartition("/")[0] for one in chosen}

    assert folders == {
        *("hpcfl/crypto", "hpcfl/algorithms/aggregation", "hpcfl/privacy/accounting"),
        "hpcfl/rounds",
    }
    assert all(one.applied() for one in chosen[:5])
    assert all(mutants.stages(one.file, whole=True)[-1] == ["tests"] for one in chosen)


@full
def test_a_mutant_is_killed_and_what_is_unchanged_survives(tmp_path):
    folder = mutants.copied(tmp_path)
    tests = ["tests/crypto/test_crypto_shamir.py"]
    assert mutants.survives(tests, folder)[0]
    mutant = next(
        one for one in mutants.mutants("hpcfl/crypto/shamir.py") if "LIMB_BITS * k" in one.before
    )
    (folder / mutant.file).write_text(mutant.applied())
    assert not mutants.survives(tests, folder)[0]
