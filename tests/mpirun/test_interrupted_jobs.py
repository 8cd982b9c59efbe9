"""Jobs that are told to leave, or lose a rank, under mpirun: all ranks end, nothing is lost."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launcher import (
    BIN,
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


def all_gone(processes):
    return not any(Path(f"/proc/{process}").exists() for process in processes)


def wait_until_gone(processes):
    end = time.monotonic() + GONE_SECONDS
    while not all_gone(processes):
        if time.monotonic() > end:
            for process in processes:
                os.kill(process, signal.SIGKILL)
            pytest.fail("ranks were left over")
        time.sleep(0.1)


def test_ctrl_c_at_a_terminal_says_how_to_go_on(tmp_path):
    """Open MPI's launcher, told to end, passes on nothing more of what ranks print."""
    path = tmp_path / "run.h5"
    terminal, ours = pty.openpty()
    job = subprocess.Popen(
        [*map(str, (*MPIRUN, RANKS, BIN / "hpcfl", "bench", *OPTIONS, "--output", path))],
        stdin=ours,
        stdout=ours,
        stderr=ours,
        start_new_session=True,
        # Ctrl-C reaches the processes whose terminal it is.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(ours)
    shown, end = b"", time.monotonic() + LIMIT_SECONDS
    with suppress(OSError):  # which is the end of a terminal that no process has any more
        while time.monotonic() < end:
            if b"^C" not in shown and path.exists() and load(path).rounds > 2:
                os.write(terminal, b"\x03")
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096)
    job.kill()
    job.wait()
    os.close(terminal)
    told = re.search(
        rb"after (\d+) rounds; continue with mpirun -n \d+ hpcfl bench --resume (\S+)", shown
    )

    assert told, shown
    assert told[2].decode() == str(path)
    assert 2 < int(told[1]) <= load(path).rounds


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
SWEEP = ("sweep", "plan.toml", "--output", ".")
PLAN = """
[fixed]
dim = 20
devices = 2
rounds = 2
[grid]
protocol = ["fedavg"]
"""


@pytest.mark.parametrize("command", [BENCH, pytest.param(SWEEP, marks=pytest.mark.full)])
def test_a_signal_after_the_last_round_changes_nothing(tmp_path, command):
    (tmp_path / "plan.toml").write_text(PLAN)
    job = start(*MPIRUN, 3, *LATE, signal.SIGTERM.value, *command, cwd=tmp_path)
    ended = finish(job, LIMIT_SECONDS)
    (file,) = tmp_path.glob("*.h5")

    assert ended.returncode == 0, ended.stderr
    assert "this rank lives" in ended.stderr
    assert load(file).status == "complete"


# Sweeps
