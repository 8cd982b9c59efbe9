"""A short part of the campaign, and proof that its checks can fail."""

import os
import shutil
import subprocess
import sys

import campaign
import h5py
import pytest
from campaign import (
    BIN,
    MARK,
    Outcome,
    Plan,
    complaints,
    draw,
    examine,
    left_behind,
    play,
    possible,
)

pytestmark = pytest.mark.full

SEED, MOST_RANKS = 7, 8
SHORT = (
    "killed by option",
    "killed from outside",
    "killed while another is stopped",
    "server killed",
    "told to leave",
    "disk filled under way",
    "folder read-only",
    "clock jumps",
)


def first(kind):
    """Return the first small run of a kind."""
    plans = (draw(SEED, number) for number in range(10_000))
    return next(plan for plan in plans if plan.kind == kind and plan.ranks <= MOST_RANKS)


@pytest.mark.parametrize("kind", SHORT)
def test_a_run_that_something_happens_to_leaves_nothing_behind_but_results(kind, tmp_path):
    plan = first(kind)
    if not possible(plan):
        pytest.skip("takes mpirun, root for file systems, or a compiler for the clock")
    outcome = play(plan, tmp_path)

    assert outcome.wrong == []


def test_every_kind_of_run_is_drawn_and_always_the_same():
    plans = [draw(1, number) for number in range(200)]

    assert {plan.kind for plan in plans} == set(campaign.KINDS)
    assert plans == [draw(1, number) for number in range(200)]
    assert {plan.ranks for plan in plans} == set(range(5, 18))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the file of a run of four rounds."""
    path = tmp_path_factory.mktemp("finished") / "run.h5"
    size = ["--devices", "8", "--dim", "50", "--rounds", "4", "--warmup", "0"]
    subprocess.run(
        [BIN / "hpcfl", "bench", "secagg", *size, "--output", path], check=True, capture_output=True
    )
    return path


def of(rounds):
    return Plan(0, "nothing", "secagg", 5, 8, 50, rounds)


def test_missing_rounds_and_false_claims_are_found(finished):
    assert [] == examine(of(4), Outcome(of(4), 0, 1.0), finished)
    for status, claim in ((0, "complete with 4 rounds"), (1, "called complete with 4 of 5 rounds")):
        [said] = examine(of(5), Outcome(of(5), status, 1.0), finished)
        assert claim in said


def test_wrong_rounds_and_files_that_are_missing_or_damaged_are_found(finished, tmp_path):
    path = tmp_path / "wrong.h5"
    assert examine(of(4), Outcome(of(4), 0, 1.0), path) == ["there is no results file"]
    shutil.copy(finished, path)
    with h5py.File(path, "r+") as file:
        file["rounds/validated"][2] = False
    [said] = examine(of(4), Outcome(of(4), 0, 1.0), path)
    assert "rounds [2] are not validated" in said
    path.write_bytes(finished.read_bytes()[:3000])
    [said] = examine(of(4), Outcome(of(4), 0, 1.0), path)
    assert "cannot be read" in said


def test_tracebacks_hangs_and_wrong_statuses_are_found():
    assert complaints(of(4), 0, "") == []
    assert "status 1" in complaints(of(4), 1, "Error: no")[0]
    assert "still running" in complaints(of(4), -1, "")[0]
    assert "a traceback" in complaints(of(4), 0, "Traceback (most recent call last):")[0]


def test_processes_that_outlive_a_run_are_found_and_killed(monkeypatch):
    monkeypatch.setattr(campaign, "LEFT_BEHIND_SECONDS", 0.2)
    mark = f"test-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {MARK: mark}
    )
    try:
        [said] = left_behind(mark)
        assert "1 processes were left" in said
        assert process.wait(10) < 0
    finally:
        process.kill()
