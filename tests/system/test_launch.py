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
STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "9"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "64"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (OPEN_MPI, (True, 2, 5)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (True, 1, 2)),
        ({"PMIX_RANK": "7"}, (True, 7, None)),
        (STEP, (True, 7, 9)),
        ({"SLURM_STEP_ID": "3", "SLURM_PROCID": "6", "SLURM_NTASKS": "8"}, (True, 6, 8)),
        # PMIx says no number: of the step's and the job's, the step's counts.
        ({"PMIX_RANK": "7", **STEP, "SLURM_NTASKS": "32"}, (True, 7, 9)),
        # mpirun inside of a step counts, and not the step.
        (OPEN_MPI | STEP | {"PMIX_RANK": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}, (True, 2, 5)),
        # What started no ranks: nothing, a batch script, an interactive shell, nonsense.
        ({}, (False, 0, None)),
        (BATCH, (False, 0, None)),
        (BATCH | {"SLURM_STEP_ID": str(0xFFFFFFFB)}, (False, 0, None)),
        (STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (False, 0, None)),
        ({"OMPI_COMM_WORLD_RANK": "-1"}, (False, 0, None)),
        ({"OMPI_COMM_WORLD_RANK": "²"}, (False, 0, None)),
    ],
)
def test_every_launcher_is_recognised(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert (launch.launched_by_mpi(), launch.guess_rank(), launch.guess_size()) == expected


# Rank 0 tells of standard output and error by its exit status.
ASK = (
    "import sys; from hpcfl.system import launch; stream = launch.terminal_for_progress(); "
    "bar = stream is not None and stream.isatty(); "
    "sys.exit(100 + 2 * launch.output_is_watched() + bar)"
)
# A launcher in small: it starts one rank with pipes as standard output and error, as mpirun does.
SMALL_LAUNCHER = (
    "import subprocess, sys; "
    "sys.exit(subprocess.run(sys.argv[1:], capture_output=True, timeout=60).returncode)"
)


def told(command, *, out, err, **variables):
    """Return whether output is watched and progress shown, where streams end at a terminal."""
    main_end, terminal_end = os.openpty()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=terminal_end if out else subprocess.DEVNULL,
            stderr=terminal_end if err else subprocess.DEVNULL,
            env=os.environ | variables,
            timeout=SECONDS,
        )
    finally:
        os.close(main_end)
        os.close(terminal_end)
    return divmod(done.returncode - 100, 2)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(("out", "err"), [(True, False), (False, True)])
def test_the_launchers_streams_say_whether_a_person_is_looking(out, err, tmp_path):
    rank = [sys.executable, "-c", ASK]
    launcher = [sys.executable, "-c", SMALL_LAUNCHER]
    script = ["sh", "-c", f"{shlex.join(rank)}; exit $?"]
    first = {"OMPI_COMM_WORLD_RANK": "0"}

    assert told(rank, out=out, err=err) == (out, err)
    assert told([*launcher, *rank], out=out, err=err, **first) == (out, err)
    assert told([*launcher, *script], out=out, err=err, **first) == (out, err)
    # Only rank 0 shows progress, and not into a file of its own.
    assert told([*launcher, *rank], out=out, err=err, OMPI_COMM_WORLD_RANK="3") == (out, 0)
    log = ["sh", "-c", f"{shlex.join(rank)} 2>{shlex.quote(str(tmp_path / 'log'))}; exit $?"]
    assert told([*launcher, *log], out=out, err=err, **first) == (out, 0)


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(("out", "err"), [(True, False), (False, True)])
def test_real_mpirun_is_seen_through(out, err):
    """Open MPI's rank 0 has a terminal as standard output and a pipe as standard error, always."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("no mpirun here")
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [mpirun, "-n", "1", sys.executable, "-c", ASK]

    assert told(command, out=out, err=err, **allowed) == (out, err)


@pytest.mark.parametrize(
    ("variables", "ranks", "start"),
    [
        ({}, 1, "hpcfl"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, 4, "mpirun -n 4 hpcfl"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", launch.ULFM_VARIABLE: "1"},
            *(4, "mpirun --with-ft ulfm -n 4 hpcfl"),
        ),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "4"}, 4, "srun -n 4 hpcfl"),
        ({launch.NETLAB_VARIABLE: '{"netlab_rate": 1}'}, 4, "hpcfl netlab ... --"),
    ],
)
def test_a_command_is_started_again_as_this_job_was(monkeypatch, variables, ranks, start):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    typed = ["bench", "--resume", "a file.h5"]
    assert launch.again(ranks, typed) == f"{start} bench --resume 'a file.h5'"
