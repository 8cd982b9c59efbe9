"""Checks of MPI: that ranks start, find each other, and outlive one of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from hpcfl.system import cores, mpiconfig
from hpcfl.system.doctor.check import OK, PROBLEM, WARNING, Check, numbers
from hpcfl.system.doctor.running import VERSION_SECONDS, Ran, run

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

# pip keeps what it built before, against another MPI perhaps, and takes it again unless told.
BUILD_MPI4PY = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary=mpi4py mpi4py"

IMPORT_SECONDS = 60.0
LAUNCH_SECONDS = 90.0
# As many as `mpirun -n 101 hpcfl bench` has: more are not needed to test crowded cores.
MOST_RANKS = 101

_MPI_PROGRAM = """
import re, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(MPI.Get_library_version().strip("\\0\\n ").splitlines()[0])
print(".".join(map(str, MPI.Get_version())))
maps = open("/proc/self/maps").read()
print(*sorted(set(re.findall(r"\\s(/.*/libmpi\\S*)$", maps, re.M)))[:1])
"""

# One line: some launchers do not pass a line break on.
SUM_PROGRAM = (
    "from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(1); c.rank or print('ranks', s)"
)

_CROWD_PROGRAM = (
    "import numpy; from hpcfl.comm.world import connect; w = connect(); "
    "t = w.transport(w.size - 1); "
    "[t.sum_to_server(numpy.ones(20000)) for _ in range(20)]; "
    "w.rank or print('ranks', w.size)"
)

_FAULT_PROGRAM = """
import os, signal
from mpi4py import MPI
comm = MPI.COMM_WORLD.Dup()
comm.Set_errhandler(MPI.ERRORS_RETURN)
if comm.rank == comm.size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.Barrier()
except MPI.Exception:
    comm.Revoke()
rest = comm.Shrink()
if rest.Agree(1) == 1 and rest.rank == 0:
    print("survivors", rest.size, flush=True)
rest.Barrier()
os._exit(0)
"""


@dataclass(frozen=True)
class Implementation:
    """An MPI implementation: its family, such as "Open MPI", and its version."""

    family: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} {self.version}".strip()


@dataclass(frozen=True)
class Launcher:
    """The mpirun on PATH, or what does its work better."""

    path: str
    implementation: Implementation


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads, or the sentence that says why it loads none."""

    implementation: Implementation | None
    text: str = ""
    standard: str = ""
    path: str = ""
    error: str = ""


def find_library() -> Library:
    """Return the MPI library that mpi4py loads."""
    ran = run([sys.executable, "-c", _MPI_PROGRAM], IMPORT_SECONDS)
    lines = ran.output.splitlines()
    if ran.status is not None and ran.status < 0:
        return Library(None, error=f"loading MPI died of {_signal_name(-ran.status)}")
    if len(lines) < 2:
        return Library(None, error=ran.reason)
    path = lines[2] if len(lines) > 2 else ""
    return Library(identify(lines[0]), lines[0], lines[1], path)


def find_launcher(search: str | None = None) -> Launcher | None:
    """Return the mpirun on PATH, for Intel MPI its mpiexec.hydra; None if there is none."""
    path = shutil.which("mpirun", path=search) or shutil.which("mpiexec", path=search)
    if path is None:
        return None
    ran = run([path, "--version"], VERSION_SECONDS)
    implementation = identify(ran.output or ran.errors)
    # Intel's mpirun is a shell script, which does not pass signals on.
    hydra = Path(path).parent / "mpiexec.hydra"
    if implementation.family == "Intel MPI" and hydra.exists():
        path = str(hydra)
    return Launcher(path, implementation)


def identify(text: str) -> Implementation:
    """Return the implementation that the version text of a library or of mpirun speaks of."""
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
    return Implementation("unknown MPI", "")


def check_mpi4py(library: Library, launcher: Launcher | None) -> Check:
    """Check that mpi4py finds an MPI library and can load it."""
    if library.implementation is None:
        remedy = (
            f"build mpi4py against {launcher.implementation}, whose mpirun is here: "
            + _build(launcher)
            if launcher is not None
            else "install an MPI for this environment with pip install 'hpcfl[mpi]', or load the "
            f"cluster's MPI module and build mpi4py against it: {BUILD_MPI4PY}"
        )
        return Check("mpi4py", PROBLEM, library.error, remedy)
    name = str(library.implementation) if library.implementation.version else library.text
    found = f"loads {name}, MPI standard {library.standard}"
    return Check("mpi4py", OK, f"{found} ({library.path})" if library.path else found)


def check_mpirun(launcher: Launcher | None, library: Library) -> Check:
    """Check that there is a launcher and that it belongs to the MPI that mpi4py loads."""
    if launcher is None:
        return _no_mpirun()
    started, loaded = launcher.implementation, library.implementation
    found = f"{started} ({launcher.path})"
    if loaded is None or belong_together(started, loaded):
        if started.family == "Intel MPI":
            found += "; its mpirun does not pass signals on"
        return Check("mpirun", OK, found)
    own = Path(sys.prefix) / "bin"
    remedy = f"use the mpirun of {loaded}, which mpi4py loads"
    if (own / "mpirun").exists() and own != Path(launcher.path).parent:
        remedy = f"source {own}/activate, whose mpirun is that of {loaded}, which mpi4py loads"
    remedy += f", or build mpi4py against {started}: {_build(launcher)}"
    same_family = started.family == loaded.family
    return Check("mpirun", WARNING if same_family else PROBLEM, found, remedy)


def _build(launcher: Launcher) -> str:
    """Return how mpi4py is built against the MPI that a launcher belongs to."""
    compiler = shutil.which("mpicc")
    if compiler and Path(compiler).parent == Path(launcher.path).parent:
        return BUILD_MPI4PY
    return (
        f"with the mpicc of {launcher.implementation} first on PATH (a cluster's module has it, a "
        f"distribution's development package), {BUILD_MPI4PY}"
    )


def _no_mpirun() -> Check:
    embedded = Path(sys.prefix) / "bin"
    if (embedded / "mpirun").exists():
        remedy = f"put {embedded} on PATH: source {embedded}/activate"
        return Check("mpirun", PROBLEM, "not on PATH", remedy)
    if shutil.which("srun"):
        remedy = "start hpcfl with srun, or load the MPI module that brings mpirun"
        return Check("mpirun", WARNING, "not on PATH, but srun is", remedy)
    remedy = "pip install 'hpcfl[mpi]', or load the cluster's MPI module"
    return Check("mpirun", PROBLEM, "not on PATH", remedy)


def belong_together(launcher: Implementation, library: Implementation) -> bool:
    """Return whether processes that the launcher starts find each other with the library.

    MPICH and its descendants share one start-up protocol across versions; Open MPI promises it
    only within one.
    """
    descendants = {"MPICH", "MVAPICH", "Intel MPI"}
    if launcher.family in descendants and library.family in descendants:
        return True
    return launcher == library


def check_root(launcher: Launcher) -> Check:
    """Check that Open MPI, which refuses root unless told twice, is told."""
    if os.geteuid() != 0:
        return Check("root", OK, "not root")
    missing = [name for name in ROOT_VARIABLES if os.environ.get(name) != "1"]
    if launcher.implementation.family != "Open MPI" or not missing:
        return Check("root", OK, "root, and mpirun accepts it")
    remedy = f"export {' '.join(f'{name}=1' for name in ROOT_VARIABLES)}"
    return Check("root", PROBLEM, "Open MPI's mpirun refuses root", remedy)


def check_launch(launcher: Launcher) -> Check:
    """Check that ranks, as many as there are cores but no more than three, find each other."""
    ranks = max(1, min(3, cores.usable() or 1))
    ran = _run_ranks(launcher, ranks, SUM_PROGRAM)
    answers = re.findall(r"ranks (\d+)", ran.output)
    if answers == [str(ranks)]:
        return Check("launch", OK, f"mpirun -n {ranks} works")
    if ranks > 1 and "1" in answers:
        found = f"mpirun -n {ranks} starts processes that do not find each other"
        remedy = f"use the mpirun of the MPI that mpi4py loads, or {_build(launcher)}"
        return Check("launch", PROBLEM, found, remedy)
    remedy = f"make this work first: {_shown(launcher, ranks)}"
    return Check("launch", PROBLEM, f"mpirun -n {ranks} fails: {ran.reason}", remedy)


def check_oversubscription(launcher: Launcher) -> Check:
    """Check that a bare mpirun starts far more ranks than there are cores, and they make progress.

    More than four times as many, where those are not very many.
    """
    cores = os.cpu_count() or 1
    ranks = max(cores + 1, min(4 * cores + 1, MOST_RANKS))
    ran = _run_ranks(launcher, ranks, _CROWD_PROGRAM)
    if f"ranks {ranks}" in ran.output:
        return Check("oversubscription", OK, f"mpirun -n {ranks} on {cores} cores works")
    found = f"mpirun -n {ranks} on {cores} cores fails: {ran.reason}"
    return Check("oversubscription", WARNING, found, _oversubscription_remedy(launcher))


def _oversubscription_remedy(launcher: Launcher) -> str:
    if launcher.implementation.family != "Open MPI":
        return "start fewer ranks, and say with --devices how many devices they hold"
    if mpiconfig.has_embedded_open_mpi(Path(sys.prefix)):
        return "hpcfl doctor --fix allows it in this environment"
    if numbers(launcher.implementation.version) < (5,):
        return "start mpirun --oversubscribe --bind-to none"
    return "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"


def check_fault_tolerance(launcher: Launcher) -> Check:
    """Check whether ranks go on after one of them was killed: ULFM, in MPI's terms."""
    name = "fault tolerance"
    if launcher.implementation.family != "Open MPI":
        return Check(name, OK, f"not with {launcher.implementation}; not needed for bench")
    options = ["--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE"]
    ran = _run_ranks(launcher, 3, _FAULT_PROGRAM, options)
    if "survivors 2" in ran.output:
        return Check(name, OK, "mpirun --with-ft ulfm survives a killed rank; not needed for bench")
    remedy = "nothing for bench; to really kill ranks, use Open MPI 5 built with ULFM, and mpi4py 4"
    return Check(name, WARNING, f"no rank survives another's death: {ran.reason}", remedy)


def _run_ranks(
    launcher: Launcher, ranks: int, program: str, options: list[str] | None = None
) -> Ran:
    # Root is a check of its own; here it shall not hide whether MPI works.
    allowed = {**os.environ, **dict.fromkeys(ROOT_VARIABLES, "1")}
    command = [launcher.path, *(options or []), "-n", str(ranks), sys.executable, "-c", program]
    return run(command, LAUNCH_SECONDS, allowed)


def _shown(launcher: Launcher, ranks: int) -> str:
    return f'{launcher.path} -n {ranks} {sys.executable} -c "from mpi4py import MPI"'


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
