"""Starts real MPI jobs with an outer time limit, so that nothing can hang."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LIMIT_SECONDS = 240

needs_mpirun = pytest.mark.skipif(
    not (BIN / "mpirun").exists() and shutil.which("mpirun") is None,
    reason="no mpirun: install the extra 'mpi' or an MPI of your own",
)


def environment() -> dict[str, str]:
    """Return the environment of a job: this interpreter's programs first, our modules found."""
    variables = dict(os.environ)
    variables["PATH"] = f"{BIN}{os.pathsep}{variables.get('PATH', '')}"
    # Where this hpcfl was found, another would be if it is only installed.
    found = [str(HERE), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(found)
    return variables


def start(*command: object, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a process group of its own."""
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        **options,
    )


def finish(
    job: subprocess.Popen[str], limit_seconds: float = LIMIT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Wait for a job; kill it and fail the test if it does not end in time."""
    try:
        out, err = job.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        pytest.fail(f"the job hung for {limit_seconds} s\n{out}\n{err}")
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def mpirun(
    ranks: int, *command: object, limit_seconds: float = LIMIT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command under mpirun, however few cores there are."""
    launcher = ("mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", ranks)
    return finish(start(*launcher, *command), limit_seconds)


def bench(
    ranks: int, folder: Path, *options: object, limit_seconds: float = LIMIT_SECONDS
) -> list[dict[str, Any]]:
    """Run `hpcfl bench` that must succeed, and return the summaries it prints."""
    job = mpirun(
        ranks,
        *("hpcfl", "bench", *options, "--output", folder, "--json"),
        limit_seconds=limit_seconds,
    )

    assert job.returncode == 0, job.stderr
    runs: list[dict[str, Any]] = json.loads(job.stdout)["runs"]
    return runs


def pid_of_rank(launcher: int, rank: int) -> int:
    """Return the pid of a rank of a launcher on this host."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and b"OMPI_COMM_WORLD_RANK=%d" % rank in variables:
            return int(folder.name)
    raise AssertionError(f"no rank {rank} was found")
