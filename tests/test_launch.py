"""What a process knows of its launcher before MPI is touched."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcfl
from hpcfl.system import launch

ROOT = Path(hpcfl.__file__).parents[1]
SECONDS = 60

ASK = (
    "import sys; from hpcfl.system import launch; stream = launch.terminal_for_progress(); "
    "print(f'{launch.guess_rank()}={stream is not None and stream.isatty()}', flush=True)"
)
# A launcher in small: it starts one rank with a pipe as standard error, as mpirun does.
SMALL_LAUNCHER = (
    "import subprocess, sys; "
    "sys.exit(subprocess.run(sys.argv[1:], stderr=subprocess.PIPE, timeout=60).returncode)"
)


NO_LAUNCH = (False, 0, None)
STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "9"}


def found():
    return launch.launched_by_mpi(), launch.guess_rank(), launch.guess_size()


def test_tests_that_start_jobs_are_given_to_one_worker(request):
    if "workerinput" not in vars(request.config):
        pytest.skip("tests are not run by several workers")
    assert request.node.nodeid.endswith("@jobs")


def test_a_process_without_launcher_is_rank_0_of_no_known_number():
    assert found() == NO_LAUNCH


@pytest.mark.parametrize(
    ("variables", "rank", "size"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}, 2, 5),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, 3, 4),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, 1, 2),
        ({"PMIX_RANK": "7"}, 7, None),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "8"}, 6, 8),
        ({"SLURM_STEP_ID": "3", "SLURM_PROCID": "6", "SLURM_NTASKS": "8"}, 6, 8),
        # PMIx says no number: of the step's and the job's, the step's counts.
        ({"PMIX_RANK": "7", **STEP, "SLURM_NTASKS": "32"}, 7, 9),
        # mpirun inside of a step counts, and not the step.
        (
            {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "6", "PMIX_RANK": "1"}
            | {"PMI_RANK": "1", "PMI_SIZE": "2", **STEP},
            4,
            6,
        ),
    ],
)
def test_every_launcher_is_recognised(monkeypatch, variables, rank, size):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert found() == (True, rank, size)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "64"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "64", "SLURM_STEP_ID": str(0xFFFFFFFB)},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"},
    ],
    ids=["batch script", "batch step", "interactive shell"],
)
def test_a_slurm_job_that_started_no_ranks_is_no_mpi_launch(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert found() == NO_LAUNCH


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "²"])
def test_values_that_are_no_numbers_are_ignored(monkeypatch, value):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", value)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", value)

    assert found() == NO_LAUNCH


def test_asking_costs_no_import():
    """At 101 ranks on 2 cores, every 100 ms of import are 5 s of waiting."""
    program = (
        "import os, sys; before = set(sys.modules); import hpcfl.system.launch; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )

    expected = {"__future__", "hpcfl", "hpcfl.system", "hpcfl.system.launch"}
    assert set(done.stdout.split()) <= expected, done.stderr
    assert "hpcfl.system.launch" in done.stdout


# The same of standard output; the answer goes to standard error.
ASK_OUTPUT = (
    "import sys; from hpcfl.system import launch; "
    "print(launch.output_is_watched(), file=sys.stderr, flush=True)"
)
SMALL_LAUNCHER_OF_OUTPUT = SMALL_LAUNCHER.replace("stderr=", "stdout=")


def ask_output(command, *, terminal, rank=0):
    """Return a command's standard error, its standard output being a terminal or a file."""
    main_end, terminal_end = os.openpty()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=terminal_end if terminal else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ if rank is None else os.environ | {"OMPI_COMM_WORLD_RANK": str(rank)},
            text=True,
            timeout=SECONDS,
        )
    finally:
        os.close(main_end)
        os.close(terminal_end)
    return done.stderr.strip()


def ask_at_terminal(command, *, terminal, rank=0):
    """Return a command's standard output, its standard error being a terminal or a file."""
    main_end, terminal_end = os.openpty()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=terminal_end if terminal else subprocess.DEVNULL,
            env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)},
            text=True,
            timeout=SECONDS,
        )
    finally:
        os.close(main_end)
        os.close(terminal_end)
    return done.stdout.strip()


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("through", ["directly", "through a script"])
@pytest.mark.parametrize("terminal", [True, False], ids=["at a terminal", "in a file"])
def test_the_launchers_standard_error_decides_on_progress(terminal, through):
    rank = [sys.executable, "-c", ASK]
    if through == "through a script":
        rank = ["sh", "-c", f"{shlex.join(rank)}; true"]
    command = [sys.executable, "-c", SMALL_LAUNCHER, *rank]

    assert ask_at_terminal(command, terminal=terminal) == f"0={terminal}"


@needs_proc
def test_only_rank_0_shows_progress():
    command = [sys.executable, "-c", SMALL_LAUNCHER, sys.executable, "-c", ASK]

    assert ask_at_terminal(command, terminal=True, rank=3) == "3=False"


@needs_proc
def test_a_rank_whose_errors_go_to_a_file_shows_no_progress(tmp_path):
    rank = f"{shlex.join([sys.executable, '-c', ASK])} 2>{shlex.quote(str(tmp_path / 'log'))}"
    command = [sys.executable, "-c", SMALL_LAUNCHER, "sh", "-c", f"{rank}; true"]

    assert ask_at_terminal(command, terminal=True) == "0=False"


@pytest.mark.parametrize("terminal", [True, False])
def test_without_launcher_our_own_standard_error_decides(monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)

    stream = launch.terminal_for_progress()

    assert (stream is sys.stderr) == terminal
    assert terminal or stream is None


@needs_proc
@pytest.mark.parametrize("terminal", [True, False], ids=["at a terminal", "in a file"])
def test_real_mpirun_shows_progress_only_to_a_person(monkeypatch, terminal):
    """Open MPI's rank 0 has a terminal as standard output and a pipe as standard error, always."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("no mpirun here")
    command = [mpirun, "-n", "1", sys.executable, "-c", ASK]
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")

    assert ask_at_terminal(command, terminal=terminal) == f"0={terminal}"


@needs_proc
@pytest.mark.parametrize("through", ["alone", "by a launcher", "by a launcher and a script"])
@pytest.mark.parametrize("terminal", [True, False], ids=["at a terminal", "in a file"])
def test_output_is_watched_where_that_of_the_launcher_is(terminal, through):
    rank = [sys.executable, "-c", ASK_OUTPUT]
    if through == "alone":
        assert ask_output(rank, terminal=terminal, rank=None) == str(terminal)
        return
    if through == "by a launcher and a script":
        rank = ["sh", "-c", f"{shlex.join(rank)}; true"]
    command = [sys.executable, "-c", SMALL_LAUNCHER_OF_OUTPUT, *rank]

    assert ask_output(command, terminal=terminal) == str(terminal)


@needs_proc
@pytest.mark.parametrize("terminal", [True, False], ids=["at a terminal", "in a file"])
def test_output_of_real_mpirun_is_watched_only_at_a_terminal(monkeypatch, terminal):
    """Whatever mpirun's output is, Open MPI's rank 0 has a terminal as its own."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("no mpirun here")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    command = [mpirun, "-n", "1", sys.executable, "-c", ASK_OUTPUT]

    assert ask_output(command, terminal=terminal, rank=None) == str(terminal)


@pytest.mark.parametrize(
    ("variables", "ranks", "command"),
    [
        ({}, 1, "hpcfl bench --resume 'a file.h5'"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, 4, "mpirun -n 4 hpcfl bench --resume 'a file.h5'"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", launch.ULFM_VARIABLE: "1"},
            *(4, "mpirun --with-ft ulfm -n 4 hpcfl bench --resume 'a file.h5'"),
        ),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"},
            *(4, "srun -n 4 hpcfl bench --resume 'a file.h5'"),
        ),
        (
            {launch.NETLAB_VARIABLE: '{"netlab_rate": 1}', "OMPI_COMM_WORLD_RANK": "0"},
            *(4, "hpcfl netlab ... -- bench --resume 'a file.h5'"),
        ),
    ],
)
def test_a_command_is_started_again_as_this_job_was(monkeypatch, variables, ranks, command):
    known = (*launch.RANK_VARIABLES, *launch.SIZE_VARIABLES, launch.ULFM_VARIABLE)
    slurm = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    for name in (*known, *slurm, launch.NETLAB_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert launch.again(ranks, ["bench", "--resume", "a file.h5"]) == command
