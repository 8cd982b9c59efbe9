"""Checks of everything that hpcfl needs: what was found, and what to do about it.

Whatever may be broken is tried in a process of its own with a time limit, so that a broken MPI
gives a line in the report instead of ending it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.system import environment, launch, mpiconfig

OK, WARNING, PROBLEM = "ok", "warning", "problem"

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

MINIMUM_PYTHON = (3, 11)
# Used when the package's own metadata is not there to be asked.
REQUIRED_PACKAGES = ("click", "cryptography", "h5py", "mpi4py", "numpy", "tabulate")

VERSION_SECONDS = 20.0
IMPORT_SECONDS = 60.0
LAUNCH_SECONDS = 90.0
HDF5_SECONDS = 60.0
END_SECONDS = 10.0

FREE_DISK_BYTES = 1 << 30
# Open MPI maps 16 MiB a rank and really uses 0.1 MiB; 101 ranks were seen to run in this much.
SHARED_MEMORY_BYTES = 64 << 20

_MPI_PROGRAM = """
import re, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(MPI.Get_library_version().strip("\\0\\n ").splitlines()[0])
print(".".join(map(str, MPI.Get_version())))
maps = open("/proc/self/maps").read()
print(*sorted(set(re.findall(r"/\\S*/libmpi\\S*", maps)))[:1])
"""

# One line: some launchers do not pass a line break on.
_SUM_PROGRAM = (
    "from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(1); c.rank or print('ranks', s)"
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

_HDF5_PROGRAM = """
import fcntl, sys, h5py
path, locking = sys.argv[1], sys.argv[2] == "locked"
with h5py.File(path, "w", locking=locking) as file:
    file["x"] = [1, 2, 3]
    file.flush()
    with open(path) as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = "unlocked"
        except OSError:
            held = "locked"
with h5py.File(path, "r", locking=locking) as file:
    assert file["x"][...].tolist() == [1, 2, 3]
print(h5py.version.hdf5_version, held)
"""


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes
    ----------
    name : str
        What was checked.
    status : str
        ``"ok"``, ``"warning"`` (works, but see the remedy) or ``"problem"``.
    found : str
        What is there, in one line.
    remedy : str
        What to do, empty if nothing is to be done.
    """

    name: str
    status: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Implementation:
    """An MPI implementation: its family, such as "Open MPI", and its version."""

    family: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} {self.version}".strip()


@dataclass(frozen=True)
class Launcher:
    """The mpirun on PATH."""

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


@dataclass(frozen=True)
class Ran:
    """How a command ended; `status` is None if it could not be started or took too long."""

    status: int | None
    output: str = ""
    errors: str = ""

    @property
    def reason(self) -> str:
        """What the command itself said about its failure, in one line."""
        lines = [line.strip() for line in (self.errors + "\n" + self.output).splitlines()]
        lines = [line for line in lines if line.strip("-=*+| ")]
        if not lines:
            return f"exit status {self.status}"
        # A Python traceback ends with what went wrong, a launcher's help text begins with it.
        traceback = any(line.startswith("Traceback") for line in lines)
        return lines[-1 if traceback else 0][:200]


def examine(results: Path) -> Iterator[Check]:
    """Run every check, in an order in which the first problem explains later ones.

    Parameters
    ----------
    results : Path
        The folder that results shall be written to. It is not created.

    Yields
    ------
    Check
        As soon as it is known.

    Raises
    ------
    UsageError
        If this process is itself one of several ranks.
    """
    if (launch.guess_size() or 1) > 1:
        raise UsageError("hpcfl doctor starts mpirun by itself: call it without a launcher")
    yield check_machine()
    yield check_python()
    yield check_packages()
    yield check_command()
    library = find_library()
    launcher = find_launcher()
    yield check_mpi4py(library)
    yield check_mpirun(launcher, library)
    if launcher is not None:
        yield check_root(launcher)
    if launcher is not None and library.implementation is not None:
        launched = check_launch(launcher)
        yield launched
        if launched.status == OK:
            yield check_oversubscription(launcher)
            yield check_fault_tolerance(launcher)
    yield check_shared_memory()
    yield check_slurm()
    yield check_results(results)
    yield check_hdf5(results)


def check_machine() -> Check:
    """Report cores, memory and load, because other work on the machine spoils measurements."""
    facts = environment.capture_local()
    cores, load = facts["cores_usable"], facts["load_1min"]
    found = (
        f"{facts['cores_physical'] or '?'} cores, {facts['cores_logical'] or '?'} hardware "
        f"threads, {cores or '?'} usable; {_gibibytes(facts['memory_available_bytes'])} of "
        f"{_gibibytes(facts['memory_bytes'])} memory free; load {_rounded(load)}"
    )
    if load is not None and cores and load > 0.5 * cores:
        return Check("machine", WARNING, found, "wait for other work to end before you measure")
    if facts["swap_used_bytes"]:
        found += f"; {_gibibytes(facts['swap_used_bytes'])} swapped out"
        return Check("machine", WARNING, found, "see what needs the memory before you measure")
    return Check("machine", OK, found)


def check_python() -> Check:
    """Check the version of the running interpreter."""
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < MINIMUM_PYTHON:
        needed = ".".join(map(str, MINIMUM_PYTHON))
        return Check("Python", PROBLEM, found, f"use Python {needed} or newer")
    return Check("Python", OK, found)


def check_packages() -> Check:
    """Check that the required packages are there, in the versions that are required."""
    found, wrong = [], []
    for name, minimum in required_packages().items():
        version = environment.package_version(name)
        found.append(f"{name} {version or 'missing'}")
        if version is None or _numbers(version) < _numbers(minimum):
            wrong.append(f"{name}>={minimum}" if minimum else name)
    remedy = f"pip install {' '.join(f'{name!r}' for name in wrong)}" if wrong else ""
    return Check("packages", PROBLEM if wrong else OK, ", ".join(found), remedy)


def required_packages() -> dict[str, str]:
    """Return the packages that hpcfl requires, each with its lowest version, or "" for any."""
    try:
        lines = importlib.metadata.requires("hpcfl") or []
    except importlib.metadata.PackageNotFoundError:
        return dict.fromkeys(REQUIRED_PACKAGES, "")
    required = {}
    for line in lines:
        name, minimum = re.match(r"[\w.-]+", line), re.search(r">=\s*([\w.]+)", line)
        if name and "extra ==" not in line:
            required[name[0]] = minimum[1] if minimum else ""
    return required


def check_command() -> Check:
    """Check that ``mpirun hpcfl`` would start this installation."""
    path = shutil.which("hpcfl")
    here = Path(sys.executable).parent
    if path is None:
        remedy = f"install it (make setup) and put {here} on PATH, or start python -m hpcfl"
        return Check("hpcfl command", WARNING, "not on PATH", remedy)
    if Path(path).parent.resolve() != here.resolve():
        remedy = f"put {here} first on PATH: another environment's hpcfl would be started"
        return Check("hpcfl command", WARNING, path, remedy)
    return Check("hpcfl command", OK, path)


def find_library() -> Library:
    """Return the MPI library that mpi4py loads."""
    ran = _run([sys.executable, "-c", _MPI_PROGRAM], IMPORT_SECONDS)
    lines = ran.output.splitlines()
    if ran.status is not None and ran.status < 0:
        return Library(None, error=f"loading MPI died of {_signal_name(-ran.status)}")
    if len(lines) < 2:
        return Library(None, error=ran.reason)
    path = lines[2] if len(lines) > 2 else ""
    return Library(identify(lines[0]), lines[0], lines[1], path)


def find_launcher() -> Launcher | None:
    """Return the mpirun on PATH, None if there is none."""
    path = shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        return None
    ran = _run([path, "--version"], VERSION_SECONDS)
    return Launcher(path, identify(ran.output or ran.errors))


def identify(text: str) -> Implementation:
    """Return the implementation that a version text of a library or launcher speaks of.

    Parameters
    ----------
    text : str
        What ``MPI_Get_library_version`` or ``mpirun --version`` says.
    """
    families = {
        "Open MPI": r"Open ?MPI\)?[ v]*([\d.]+\w*)|OpenRTE\)?\s*([\d.]+\w*)",
        "Intel MPI": r"Intel\(R\) MPI Library(?:.*?Version)?[ v]*([\d.]+)",
        "MVAPICH": r"MVAPICH\S*\s+Version\s*:\s*(\S+)",
        "MPICH": r"MPICH Version:\s*(\S+)|HYDRA.*?Version:\s*(\S+)",
    }
    for family, pattern in families.items():
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return Implementation(family, next(filter(None, found.groups()), ""))
    return Implementation("unknown MPI", "")


def check_mpi4py(library: Library) -> Check:
    """Check that mpi4py finds an MPI library and can load it."""
    if library.implementation is None:
        remedy = (
            "install an MPI for this environment with pip install 'hpcfl[mpi]', or load the "
            "cluster's MPI module"
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
        return Check("mpirun", OK, found)
    remedy = (
        f"use the mpirun of {loaded}, which mpi4py loads: otherwise every rank believes to be "
        "alone; activate the environment, or load one MPI module only"
    )
    same_family = started.family == loaded.family
    return Check("mpirun", WARNING if same_family else PROBLEM, found, remedy)


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
    ranks = max(1, min(3, environment.usable_cores() or 1))
    ran = _run_ranks(launcher, ranks, _SUM_PROGRAM)
    answers = re.findall(r"ranks (\d+)", ran.output)
    if answers == [str(ranks)]:
        return Check("launch", OK, f"mpirun -n {ranks} works")
    if ranks > 1 and "1" in answers:
        found = f"mpirun -n {ranks} starts processes that do not find each other"
        return Check("launch", PROBLEM, found, "use the mpirun of the MPI that mpi4py loads")
    remedy = f"make this work first: {_shown(launcher, ranks)}"
    return Check("launch", PROBLEM, f"mpirun -n {ranks} fails: {ran.reason}", remedy)


def check_oversubscription(launcher: Launcher) -> Check:
    """Check that a bare mpirun starts more ranks than there are cores."""
    ranks = (os.cpu_count() or 1) + 1
    ran = _run_ranks(launcher, ranks, _SUM_PROGRAM)
    if f"ranks {ranks}" in ran.output:
        return Check("oversubscription", OK, f"mpirun -n {ranks}, more than cores, works")
    found = f"mpirun -n {ranks}, more than cores, fails: {ran.reason}"
    return Check("oversubscription", WARNING, found, _oversubscription_remedy(launcher))


def _oversubscription_remedy(launcher: Launcher) -> str:
    if launcher.implementation.family != "Open MPI":
        return "start no more ranks than there are cores, and use --devices for more devices"
    if mpiconfig.has_embedded_open_mpi(Path(sys.prefix)):
        return "hpcfl doctor --fix allows it in this environment"
    if _numbers(launcher.implementation.version) < (5,):
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
    remedy = "nothing for bench; to really kill ranks, use Open MPI 5 built with ULFM"
    return Check(name, WARNING, f"no rank survives another's death: {ran.reason}", remedy)


def check_shared_memory() -> Check:
    """Check that ranks of one host have room to exchange messages."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", OK, f"no {folder} here")
    free = shutil.disk_usage(folder).free
    if free < SHARED_MEMORY_BYTES:
        remedy = "remove old files there, or give the container more (docker run --shm-size=1g)"
        return Check("shared memory", WARNING, f"{free >> 20} MiB free in {folder}", remedy)
    return Check("shared memory", OK, f"{_gibibytes(free)} free in {folder}")


def check_slurm() -> Check:
    """Report the process managers that Slurm, if it is here, offers to srun."""
    if shutil.which("srun") is None:
        return Check("Slurm", OK, "not here; mpirun starts the ranks")
    ran = _run(["srun", "--mpi=list"], VERSION_SECONDS)
    offered = sorted(set(re.findall(r"\b(?:pmix\w*|pmi2|cray\w*)\b", ran.output + ran.errors)))
    if ran.status is None or not offered:
        remedy = "start ranks with mpirun inside sbatch or salloc"
        return Check("Slurm", WARNING, "srun offers no process manager for MPI", remedy)
    return Check("Slurm", OK, f"srun offers {', '.join(offered)}")


def check_results(results: Path) -> Check:
    """Check that results can be written to the folder, and that there is room."""
    folder = _existing(results)
    remedy = "choose another folder with --output"
    if not folder.is_dir():
        return Check("results", PROBLEM, f"{folder} is not a folder", remedy)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"hpcfl")
    except OSError as error:
        return Check("results", PROBLEM, f"cannot write to {folder}: {error.strerror}", remedy)
    free = shutil.disk_usage(folder).free
    found = f"{results} is writable, {_gibibytes(free)} free"
    if free < FREE_DISK_BYTES:
        return Check("results", WARNING, found, f"make room, or {remedy}")
    return Check("results", OK, found)


def check_hdf5(results: Path) -> Check:
    """Check that HDF5 files can be written, locked and read where results go."""
    try:
        with tempfile.TemporaryDirectory(prefix=".hpcfl-", dir=_existing(results)) as folder:
            ran, unlocked = (
                _run([sys.executable, "-c", _HDF5_PROGRAM, f"{folder}/{way}.h5", way], HDF5_SECONDS)
                for way in ("locked", "unlocked")
            )
    except OSError as error:
        return Check("HDF5", PROBLEM, f"cannot be tried: {error.strerror}", "see results")
    version, _, held = ran.output.strip().partition(" ")
    if held == "locked":
        return Check("HDF5", OK, f"{version} writes, locks and reads there")
    version = unlocked.output.partition(" ")[0]
    if version:
        remedy = "let no two runs write to one file, or use a file system with locks"
        return Check("HDF5", WARNING, f"{version} writes and reads there without locks", remedy)
    remedy = "pip install --force-reinstall h5py, or choose another folder with --output"
    return Check("HDF5", PROBLEM, f"cannot write a file there: {unlocked.reason}", remedy)


def render_line(check: Check) -> str:
    """Return one check as a line."""
    return f"{check.status:<8} {check.name:<17} {check.found}"


def render_remedies(checks: list[Check]) -> str:
    """Return what to do as a numbered list, problems first; empty if there is nothing to do."""
    open_checks = [check for check in checks if check.remedy]
    open_checks.sort(key=lambda check: check.status != PROBLEM)
    lines = [
        f"  {number}. {check.name}: {check.remedy}" for number, check in enumerate(open_checks, 1)
    ]
    return "\n".join(["To do:", *lines]) if lines else ""


def _run_ranks(
    launcher: Launcher, ranks: int, program: str, options: list[str] | None = None
) -> Ran:
    # Root is a check of its own; here it shall not hide whether MPI works.
    allowed = {**os.environ, **dict.fromkeys(ROOT_VARIABLES, "1")}
    command = [launcher.path, *(options or []), "-n", str(ranks), sys.executable, "-c", program]
    return _run(command, LAUNCH_SECONDS, allowed)


def _shown(launcher: Launcher, ranks: int) -> str:
    return f'{launcher.path} -n {ranks} {sys.executable} -c "from mpi4py import MPI"'


def _run(
    command: list[str], limit_seconds: float, variables: Mapping[str, str] = os.environ
) -> Ran:
    """Run a command to its end or to its time limit, and then end all it has started."""
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
        return Ran(None, errors=f"no end within {limit_seconds:g} seconds")
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    # A launcher that is asked to end takes its ranks along; one that is killed leaves them behind.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_SECONDS)
            return


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gibibytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**30:.1f} GiB"


def _rounded(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"
