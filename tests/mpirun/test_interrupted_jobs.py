"""Jobs that are told to leave, or lose a rank, under mpirun: all ranks end, nothing is lost."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from launcher import (
    HERE,
    MPIRUN,
    finish,
    needs_mpirun,
    pid_of_rank,
    start,
)

from hpcfl.results import load
from hpcfl.system.interruption import LEFT_STATUS

pytestmark = needs_mpirun

RANKS = 4
LIMIT_SECONDS = 120
# Every rank is gone this long after the signal; the machine may be busy.
GONE_SECONDS = 30
OPTIONS = ("secagg", "--dim", 2000, "--devices", 3, "--rounds", 5000, "--warmup", 1)


def job_under_way(path, *where):
    """Start a job, wait until it has finished more rounds, and return its ranks' processes."""
    before = load(path).rounds if path.exists() else 0
    job = start(*MPIRUN, RANKS, "hpcfl", "bench", *OPTIONS, *where)
    wait_for_rounds(job, path, before + 3)
    return job, [pid_of_rank(job.pid, rank) for rank in range(RANKS)]


def wait_for_rounds(job, path, rounds):
    end = time.monotonic() + LIMIT_SECONDS
    while not path.exists() or load(path).rounds < rounds:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end, "no round was finished in time"
        time.sleep(0.1)


def again(path):
    return f"mpirun -n {RANKS} hpcfl bench --resume {path}"


def wait_until_gone(processes):
    end = time.monotonic() + GONE_SECONDS
    while any(Path(f"/proc/{process}").exists() for process in processes):
        if time.monotonic() > end:
            for process in processes:
                os.kill(process, signal.SIGKILL)
            pytest.fail("ranks were left over")
        time.sleep(0.1)


@pytest.mark.parametrize("rank", [2, pytest.param(None, marks=pytest.mark.full)])
def test_all_ranks_leave_together_whether_one_is_told_or_mpirun(tmp_path, rank):
    path = tmp_path / "run.h5"
    job, processes = job_under_way(path, "--output", path)
    job.send_signal(signal.SIGUSR1) if rank is None else os.kill(processes[rank], signal.SIGTERM)
    ended = finish(job, GONE_SECONDS)
    run = load(path)

    assert ended.returncode == LEFT_STATUS, ended.stderr
    assert ended.stderr.count("Error: stopped by a signal after") == 1
    assert f"{run.rounds} rounds; continue with {again(path)}" in ended.stderr
    assert "[rank" not in ended.stderr
    assert run.status == "interrupted"
    wait_until_gone(processes)
    # The space of the rounds that were not played is cut off.
    assert path.stat().st_size < 10**6


@pytest.mark.full
def test_a_rank_that_hangs_does_not_keep_the_others(tmp_path):
    path = tmp_path / "run.h5"
    job, processes = job_under_way(path, "--output", path)
    os.kill(processes[3], signal.SIGSTOP)
    time.sleep(1)
    finished = load(path).rounds
    os.kill(processes[0], signal.SIGTERM)
    ended = finish(job, GONE_SECONDS)
    wait_until_gone(processes)
    run = load(path)

    assert ended.returncode != 0
    assert f"after {finished} rounds; continue with {again(path)}" in ended.stderr
    assert (run.status, run.rounds) == ("interrupted", finished)


@pytest.mark.full
def test_the_servers_death_costs_no_round_and_resume_goes_on(tmp_path):
    path = tmp_path / "run.h5"
    job, processes = job_under_way(path, "--output", path)
    os.kill(processes[0], signal.SIGKILL)
    assert finish(job, GONE_SECONDS).returncode != 0
    wait_until_gone(processes)
    before = load(path)
    assert (before.status, bool(before.validated.all())) == ("running", True)
    assert (before.bytes_up.sum(axis=(1, 2)) > 0).all()
    job = start(*MPIRUN, RANKS, "hpcfl", "bench", "--resume", path)
    wait_for_rounds(job, path, before.rounds + 3)
    job.send_signal(signal.SIGUSR1)
    ended = finish(job, GONE_SECONDS)
    run = load(path)

    assert ended.returncode == LEFT_STATUS, ended.stderr
    assert run.resumed[0]["first_round"] == before.rounds < run.rounds
    assert (run.round_seconds[: before.rounds] == before.round_seconds).all()
    assert (run.status, bool(run.validated.all())) == ("interrupted", True)


LATE = (sys.executable, HERE / "late_signals.py")
BENCH = ("bench", "fedavg", "--dim", 20, "--devices", 2, "--rounds", 2, "--output", "run.h5")


@pytest.mark.full
def test_a_signal_after_the_last_round_changes_nothing(tmp_path):
    job = start(*MPIRUN, 3, *LATE, signal.SIGTERM.value, *BENCH, cwd=tmp_path)
    ended = finish(job, LIMIT_SECONDS)
    (file,) = tmp_path.glob("*.h5")

    assert ended.returncode == 0, ended.stderr
    assert "this rank lives" in ended.stderr
    assert load(file).status == "complete"
