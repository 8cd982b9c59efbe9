"""Runs MPI jobs with an outer time limit, so that nothing can hang.

`mpirun` launches one; `hpcfl` and `python` have a command line run by ranks that were launched once
for all.

HPCFL_TEST_MPIRUN is the command, without the number of ranks, that launches jobs instead of the
mpirun on PATH; every command line is then launched by it.
"""

import atexit
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hpcfl.system import launch
from hpcfl.system.doctor import find_launcher

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LIMIT_SECONDS = 240
STANDING = 8
OTHER = shlex.split(os.environ.get("HPCFL_TEST_MPIRUN", ""))
LAUNCHER = find_launcher(f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")


def however_few_cores():
    """Return the command that starts as many ranks as are said after it."""
    if OTHER:
        return (*OTHER, "-n")
    if LAUNCHER is None:
        return ("mpirun", "-n")
    family, version = LAUNCHER.family, LAUNCHER.version
    if family != "Open MPI":
        return (LAUNCHER.path, "-n")
    if version < "5":
        return (LAUNCHER.path, "--oversubscribe", "--bind-to", "none", "-n")
    return (LAUNCHER.path, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n")


MPIRUN = however_few_cores()
needs_mpirun = pytest.mark.skipif(
    LAUNCHER is None and not OTHER,
    reason="no mpirun: install the extra 'mpi' or an MPI of your own",
)
needs_open_mpi_5 = pytest.mark.skipif(
    LAUNCHER is None or LAUNCHER.family != "Open MPI" or LAUNCHER.version < "5",
    reason="only with Open MPI 5",
)


def environment():
    """Return the environment of a job: this interpreter's programs first, our modules found."""
    variables = dict(os.environ)
    variables["PATH"] = f"{BIN}{os.pathsep}{variables.get('PATH', '')}"
    # Where this hpcfl was found, another would be if it is only installed.
    found = [str(HERE), str(HERE.parent), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(found)
    return variables


def start(*command, **options):
    """Start a command in a process group of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | options
    return subprocess.Popen(
        [str(part) for part in command], text=True, start_new_session=True, **options
    )


def finish(job, limit_seconds=LIMIT_SECONDS):
    """Wait for a job; kill it and fail the test if it does not end in time."""
    try:
        out, err = job.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        pytest.fail(f"the job hung for {limit_seconds} s\n{out}\n{err}")
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def mpirun(ranks, *command, limit_seconds=LIMIT_SECONDS):
    """Run a command under mpirun, however few cores there are."""
    return finish(start(*MPIRUN, ranks, *command), limit_seconds)


class StandingRanks:
    """The ranks of one mpirun, which run one command line after the other."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="hpcfl-ranks-"))
        self.asked = 0
        os.mkfifo(self.folder / "jobs")
        # Also for reading, so as not to wait for the ranks. They end when this end is closed.
        self.jobs = os.open(self.folder / "jobs", os.O_RDWR)
        with open(self.folder / "log", "w") as log:
            self.job = start(
                *(*MPIRUN, STANDING, sys.executable, "-m", "mpi4py"),
                *(HERE / "standing_ranks.py", self.folder, os.getpid()),
                stdout=log,
                stderr=log,
            )
        atexit.register(self.end)

    def end(self):
        atexit.unregister(self.end)
        os.close(self.jobs)
        try:
            self.job.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.job.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, program, ranks, arguments, limit_seconds):
        number, self.asked = self.asked, self.asked + 1
        asked = {"program": program, "ranks": ranks, "arguments": arguments}
        asked["folder"] = os.getcwd()
        os.write(self.jobs, f"{json.dumps(asked)}\n".encode())
        done, deadline = self.folder / f"{number}.done", time.monotonic() + limit_seconds
        while not done.exists():
            if self.job.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log").read_text()
                self.end()
                pytest.fail(f"{program} {arguments} took down {ranks} ranks, or hung\n{log}")
            time.sleep(0.01)
        out, err = (
            "".join((self.folder / f"{number}.{rank}.{name}").read_text() for rank in range(ranks))
            for name in ("out", "err")
        )
        statuses = json.loads(done.read_text())
        status = next((status for status in statuses if status), 0)
        return subprocess.CompletedProcess(arguments, status, out, err)


_standing = []


def hpcfl(ranks, *arguments, limit_seconds=LIMIT_SECONDS):
    """Run a command line on some ranks, as `mpirun` does but without a launch where possible.

    A job that ends its processes in another way than by leaving the command line, or that needs
    variables of the environment, must be launched.
    """
    return _run("hpcfl", ranks, arguments, limit_seconds)


def python(ranks, *arguments, limit_seconds=LIMIT_SECONDS):
    """Run the interpreter on some ranks like that; what it changes in the process stays."""
    return _run("python", ranks, arguments, limit_seconds)


def _run(program, ranks, arguments, limit_seconds):
    if ranks > STANDING or OTHER:
        command = sys.executable if program == "python" else program
        return mpirun(ranks, command, *arguments, limit_seconds=limit_seconds)
    if not _standing or _standing[-1].job.poll() is not None:
        _standing.append(StandingRanks())
    return _standing[-1].run(program, ranks, [str(each) for each in arguments], limit_seconds)


def bench(ranks, folder, *options, limit_seconds=LIMIT_SECONDS):
    """Run `hpcfl bench` that must succeed, and return the summaries it prints."""
    arguments = ("bench", *options, "--output", folder, "--json")
    job = hpcfl(ranks, *arguments, limit_seconds=limit_seconds)

    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout)["runs"]


def assert_refused(job, sentence, status=2):
    """Check that a job says once, in a sentence, what is wrong."""
    assert job.returncode == status, job.stderr
    assert job.stderr.count("Error: ") == 1
    assert sentence in job.stderr
    assert "Traceback" not in job.stderr


def pid_of_rank(launcher, rank):
    """Return the pid of a rank of a launcher on this host."""
    wanted = {b"%s=%d" % (name.encode(), rank) for name in launch.RANK_VARIABLES}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            if wanted & set(variables) and launcher in ancestors(int(folder.name)):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no rank {rank} was found")


def ancestors(pid):
    """Return the processes that a process comes from: MPICH puts a proxy between."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found
