"""Checks of everything that hpcfl needs, with findings and remedies.

Checks that may crash or hang run in separate processes with a time limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcfl.crypto import native
from hpcfl.system import environment, machine, mpiconfig
from hpcfl.values import dataclass

# WARNING means that hpcfl works, but that the remedy improves something.
OK, WARNING, PROBLEM = "ok", "warning", "problem"

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Without --no-cache-dir, pip may reuse a wheel that it built against another MPI.
BUILD_MPI4PY = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary=mpi4py mpi4py"
LIMIT_SECONDS = 90.0
# The ranks of `mpirun -n 101 hpcfl bench` are enough to test oversubscribed cores.
MOST_RANKS = 101

_MPI_PROGRAM = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(MPI.Get_library_version().strip("\\0\\n ").splitlines()[0])
"""
# In one line, because some launchers do not pass on line breaks.
SUM_PROGRAM = (
    "from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(1); c.rank or print('ranks', s)"
)
_CROWD_PROGRAM = (
    "import numpy; from hpcfl.comm.world import connect; w = connect(); "
    "t = w.transport(w.size - 1); "
    "[t.sum_to_server(numpy.ones(20000)) for _ in range(20)]; "
    "w.rank or print('ranks', w.size)"
)


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: str
    found: str  # in one line
    remedy: str = ""  # what to do, if anything


@dataclass(frozen=True)
class Ran:
    """The outcome of a command; `status` is None if it could not start or took too long."""

    status: int | None
    output: str = ""
    errors: str = ""

    @property
    def reason(self) -> str:
        """What the command itself said about its failure, in one line."""
        lines = [line.strip("-=*+| ") for line in f"{self.errors}\n{self.output}".splitlines()]
        lines = [line for line in lines if line] or [f"exit status {self.status}"]
        # A Python traceback ends with the error; a launcher's help text begins with it.
        traceback = any(line.startswith("Traceback") for line in lines)
        return lines[-1 if traceback else 0][:200]


@dataclass(frozen=True)
class Implementation:
    """An MPI library or its launcher: the family, such as "Open MPI", and the version."""

    family: str = ""
    version: str = ""
    path: str = ""  # of a launcher
    error: str = ""  # why a library cannot be loaded

    @property
    def name(self) -> str:
        """Family and version."""
        return f"{self.family} {self.version}".strip()


def run(command: list[str], limit_seconds: float, variables: Mapping[str, str] = os.environ) -> Ran:
    """Run a command; after the time limit, end it and the processes that it started."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(None, errors=f"{command[0]} cannot be started: {error.strerror}")
    try:
        output, errors = process.communicate(timeout=limit_seconds)
        return Ran(process.returncode, output, errors)
    except subprocess.TimeoutExpired:
        # A launcher ends its ranks when it receives SIGTERM; a killed one leaves them behind.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
                break
        return Ran(None, errors=f"it did not end within {limit_seconds:g} seconds")


def examine() -> Iterator[Check]:
    """Run the checks, in an order in which the first problem explains later ones."""
    yield check_machine()
    yield check_command()
    yield check_compiled()
    library, launcher = find_library(), find_launcher()
    yield check_mpi(library, launcher)
    if launcher is not None and not library.error:
        launched = check_launch(launcher)
        yield launched
        if launched.status == OK:
            yield check_oversubscription(launcher)


def check_machine() -> Check:
    """Report cores, memory and load; warn of other work, which would disturb measurements."""
    facts = environment.capture_local()
    cores, load = facts["cores_usable"], facts["load_1min"]
    found = (
        f"Python {facts['python_version']}; {cores or '?'} cores usable, "
        f"{facts['memory_available_bytes'] / 2**30:.1f} GiB memory free; load {load:.1f}"
    )
    if cores and load > 0.5 * cores:
        return Check("machine", WARNING, found, "wait for other work to end before you measure")
    return Check("machine", OK, found)


def check_command() -> Check:
    """Check that ``mpirun hpcfl`` would start this installation."""
    path, here = shutil.which("hpcfl"), Path(sys.executable).parent
    if path is None or Path(path).parent.resolve() != here.resolve():
        remedy = f"put {here} first on PATH, or start python -m hpcfl"
        return Check("hpcfl command", WARNING, path or "not on PATH", remedy)
    return Check("hpcfl command", OK, path)


def check_compiled() -> Check:
    """Report the compiled code that rounds use; everything works without it, only slower."""
    found = "masks are added by {masks_added_by}; keys are derived by {keys_derived_by} "
    found += "and agreed on by {keys_agreed_by}"
    return Check("compiled code", OK, found.format(**native.facts()))


def find_library() -> Implementation:
    """Return the MPI library that mpi4py loads."""
    ran = run([sys.executable, "-c", _MPI_PROGRAM], LIMIT_SECONDS)
    if ran.status == 0:
        return identify(ran.output)
    return Implementation(error=ran.reason)


def find_launcher(search: str | None = None) -> Implementation | None:
    """Return the mpirun on PATH (for Intel MPI, its mpiexec.hydra), or None without one."""
    path = shutil.which("mpirun", path=search) or shutil.which("mpiexec", path=search)
    if path is None:
        return None
    ran = run([path, "--version"], LIMIT_SECONDS)
    found = identify(ran.output or ran.errors)
    # Intel's mpirun is a shell script, which does not pass signals on.
    hydra = Path(path).parent / "mpiexec.hydra"
    if found.family == "Intel MPI" and hydra.exists():
        path = str(hydra)
    return Implementation(found.family, found.version, path)


def identify(text: str) -> Implementation:
    """Return the implementation that the version text of a library or of mpirun names."""
    families = {
        "Open MPI": r"Open ?MPI\)?[ v]*([\d.]+\w*)|OpenRTE\)?\s*([\d.]+\w*)",
        "Intel MPI": r"Intel\(R\) MPI Library(?:.*?Version)?[ v]*([\d.]+)",
        "Cray MPICH": r"CRAY MPICH version\s*(\S+)",
        "MVAPICH": r"MVAPICH\S*\s+Version\s*:\s*(\S+)",
        "MPICH": r"MPICH Version:\s*(\S+)|HYDRA.*?Version:\s*(\S+)",
    }
    for family, pattern in families.items():
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return Implementation(family, next(filter(None, found.groups()), ""))
    return Implementation("unknown MPI")


def check_mpi(library: Implementation, launcher: Implementation | None) -> Check:
    """Check that mpi4py loads an MPI library, and that the mpirun on PATH belongs to it."""
    build = f"build mpi4py with the mpicc of the MPI that you use first on PATH: {BUILD_MPI4PY}"
    if library.error:
        remedy = f"pip install 'hpcfl[mpi]', or load the cluster's MPI module and {build}"
        return Check("MPI", PROBLEM, library.error, remedy)
    if launcher is None:
        remedy = f"put {Path(sys.executable).parent} or the MPI module's programs on PATH"
        return Check("MPI", PROBLEM, f"mpi4py loads {library.name}; no mpirun on PATH", remedy)
    found = f"mpi4py loads {library.name}; {launcher.path} is of {launcher.name}"
    if not belong_together(launcher, library):
        same = launcher.family == library.family
        remedy = f"use the mpirun of {library.name}, or {build}"
        return Check("MPI", WARNING if same else PROBLEM, found, remedy)
    refused = os.geteuid() == 0 and any(os.environ.get(name) != "1" for name in ROOT_VARIABLES)
    if refused and launcher.family == "Open MPI":
        remedy = f"export {' '.join(f'{name}=1' for name in ROOT_VARIABLES)}"
        return Check("MPI", PROBLEM, "Open MPI's mpirun refuses root", remedy)
    return Check("MPI", OK, found)


def belong_together(launcher: Implementation, library: Implementation) -> bool:
    """Return whether processes that the launcher starts can connect through the library.

    MPICH and its descendants share one start-up protocol across versions. Open MPI guarantees a
    common protocol only within one version.
    """
    descendants = {"MPICH", "MVAPICH", "Intel MPI"}
    if {launcher.family, library.family} <= descendants:
        return True
    return launcher.name == library.name


def check_launch(launcher: Implementation) -> Check:
    """Check that one rank per core, but at most three ranks, can connect to each other."""
    ranks = max(1, min(3, machine.usable() or 1))
    ran = _run_ranks(launcher, ranks, SUM_PROGRAM)
    answers = re.findall(r"ranks (\d+)", ran.output)
    if answers == [str(ranks)]:
        return Check("launch", OK, f"mpirun -n {ranks} works")
    found = f"mpirun -n {ranks} fails: {ran.reason}"
    if ranks > 1 and "1" in answers:
        found = f"mpirun -n {ranks} starts processes that do not find each other"
    remedy = f'make this work first: {launcher.path} -n {ranks} python -c "from mpi4py import MPI"'
    return Check("launch", PROBLEM, found, remedy)


def check_oversubscription(launcher: Implementation) -> Check:
    """Check that mpirun without options starts more ranks than cores, and they make progress."""
    cores = os.cpu_count() or 1
    ranks = max(cores + 1, min(4 * cores + 1, MOST_RANKS))
    ran = _run_ranks(launcher, ranks, _CROWD_PROGRAM)
    if f"ranks {ranks}" in ran.output:
        return Check("oversubscription", OK, f"mpirun -n {ranks} on {cores} cores works")
    remedy = "start fewer ranks, and say with --devices how many devices they hold"
    if mpiconfig.has_embedded_open_mpi(Path(sys.prefix)):
        remedy = "hpcfl doctor --fix allows it in this environment"
    elif launcher.family == "Open MPI":
        remedy = "mpirun --map-by :OVERSUBSCRIBE --bind-to none"
    found = f"mpirun -n {ranks} on {cores} cores fails: {ran.reason}"
    return Check("oversubscription", WARNING, found, remedy)


def _run_ranks(launcher: Implementation, ranks: int, program: str) -> Ran:
    command = [launcher.path, "-n", str(ranks), sys.executable, "-c", program]
    return run(command, LIMIT_SECONDS, {**os.environ, **dict.fromkeys(ROOT_VARIABLES, "1")})
