"""Jobs that are told to leave, or lose a rank, under mpirun: all ranks end, nothing is lost."""

import fcntl
import json
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
    hpcfl,
    needs_mpirun,
    pid_of_rank,
    start,
)

from hpcfl.results import load
from hpcfl.sweeping.manifest import load as load_manifest
from hpcfl.sweeping.states import look
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

PARTIAL = """
[fixed]
devices = 2
[[grid]]
protocol = "secagg"
dim = 50
rounds = 200
warmup = 0
[[grid]]
algorithm = "fedavg"
epochs = 1
rounds = 100
[[grid]]
algorithm = "fedavg"
model = "nowhere:network"
rounds = 1
[[grid]]
protocol = "fedavg"
dim = 50
rounds = 2
"""


@pytest.mark.full
def test_cells_whose_server_is_killed_go_on_behind_their_rounds(tmp_path):
    """A benchmark and a training, with a rank that holds no device, and one that cannot work."""
    pytest.importorskip("torch")
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PARTIAL)
    sweep = ("hpcfl", "sweep", plan, "--output", folder, "--no-shuffle")
    ranks = RANKS
    for name in ("secagg-*.h5", "train-*.h5"):
        job = start(*MPIRUN, ranks, *sweep)
        end = time.monotonic() + LIMIT_SECONDS
        while not any(load(path).rounds > 3 for path in folder.glob(name)):
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < end, "no round was finished in time"
            time.sleep(0.05)
        processes = [pid_of_rank(job.pid, rank) for rank in range(ranks)]
        os.kill(processes[0], signal.SIGKILL)
        finish(job, GONE_SECONDS)
        wait_until_gone(processes)
    before = {name: load(next(folder.glob(name))).rounds for name in ("secagg-*.h5", "train-*.h5")}
    done = hpcfl(ranks, *sweep[1:])
    benched, trained, refused, last = load_manifest(folder).cells

    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "Cells: 2 done, 1 failed, 1 finished before" in done.stdout
    assert f"cell {refused.index} ({refused.title}) failed: " in done.stdout
    found = [look(folder, cell) for cell in (benched, trained, last)]
    assert [(one.state, one.rounds) for one in found] == [
        *(("finished", 200), ("finished", 100), ("finished", 4))
    ]
    for one in found[:2]:
        _, second = one.run.launches
        assert 3 < second < one.rounds
        assert one.run.validated.all()
    # What was played again of the training is one round at most.
    assert [*found[1].run.launches][1] in (before["train-*.h5"] - 1, before["train-*.h5"])


@pytest.mark.full
def test_the_command_that_an_interrupted_training_prints_goes_on_with_it(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "a.h5"
    words = ("train", "fedavg", "--aggregate", "secagg", "--devices", 4, "--epochs", 1)
    job = start(*MPIRUN, 3, "hpcfl", *words, "--rounds", 100_000, "--output", path)
    wait_for_rounds(job, path, 2)
    job.send_signal(signal.SIGUSR1)
    ended = finish(job, LIMIT_SECONDS)
    assert ended.returncode == LEFT_STATUS, ended.stderr
    advice = ended.stderr.partition("continue with ")[2].splitlines()[0].split()
    assert advice[:5] == ["mpirun", "-n", "3", "hpcfl", "train"]

    before = load(path).rounds
    done = hpcfl(3, *advice[4:], "--rounds", before + 1, "--json")
    assert done.returncode == 0, done.stderr
    assert load(json.loads(done.stdout)["path"]).rounds == 1
