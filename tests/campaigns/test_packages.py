"""Source archive and wheel, built and used outside a checkout.

The wheel is tested with every Python listed in HPCFL_PYTHONS, paths separated by ":", and by
default with the one that runs the tests.
"""

import os
import shutil
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from environments import make, run

from hpcfl.results.reader import find, load_usable
from hpcfl.slurm.script import KINDS
from hpcfl.sweeping.cells import resolve
from hpcfl.sweeping.plan import read
from hpcfl.sweeping.shipped import locate

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = DECLARED["project"]
PYTHONS = (os.environ.get("HPCFL_PYTHONS") or sys.executable).split(":")
# Stray files of a checkout that must not be in an archive.
STRAY = ("results/run.h5", "tests/__pycache__/x.pyc", ".venv/x.py", "docs/__pycache__/x.pyc")

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("git") is None or not (ROOT / ".git").exists(),
        reason="packages are built from what git tracks",
    ),
]


@pytest.fixture(scope="module")
def tracked():
    listed = run("git", "-C", ROOT, "ls-files", "-z", folder=ROOT).split("\0")
    # Leave out files that are removed from the working tree but not yet from git.
    return [name for name in listed if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """Return the programs that make and check packages, with the build's requirements."""
    tools = ("build", "twine", *DECLARED["build-system"]["requires"])
    return make(tmp_path_factory.mktemp("builder") / "venv", *tools)


@pytest.fixture(scope="module")
def built(tmp_path_factory, tracked, builder):
    """Return the folder of the source archive and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("packages")
    for name in tracked:
        place = folder / "sources" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place)
    for name in STRAY:
        place = folder / "sources" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text("stray")
    build = (builder / "python", "-m", "build", "--no-isolation", "--outdir", "dist")
    run(*build, "sources", folder=folder)
    run(builder / "twine", "check", "--strict", *(folder / "dist").iterdir(), folder=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built):
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    """Return the folder of the unpacked source archive."""
    folder = tmp_path_factory.mktemp("unpacked")
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request, wheel, tmp_path_factory):
    """Return a working folder, and the programs of an environment with only the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "work").mkdir()
    return folder / "work", make(folder / "venv", f"{wheel}[mpi]", python=request.param)


def test_the_source_archive_holds_what_git_tracks_and_nothing_else(unpacked, tracked):
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    made = {name for name in found if name.startswith("hpcfl.egg-info/")}

    assert found - made == {*tracked, "PKG-INFO", "setup.cfg"}


def test_the_metadata_are_those_that_an_index_shows(wheel):
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        (license,) = (name for name in files.namelist() if name.endswith("/licenses/LICENSE"))
        shown = Parser().parsestr(files.read(name).decode())
        held = {name.split("/")[0] for name in files.namelist()}
        assert files.read(license) == (ROOT / "LICENSE").read_bytes()

    assert shown["License-Expression"] == PROJECT["license"]
    assert shown["Author"] == PROJECT["authors"][0]["name"]
    assert shown["Description-Content-Type"] == "text/markdown"
    assert "](docs/" not in shown.get_payload()
    # Only the package and its metadata: no tests, no examples.
    assert held == {"hpcfl", name.split("/")[0]}


def hpcfl(installed, *arguments):
    folder, programs = installed
    return run(programs / "hpcfl", *arguments, folder=folder, path=programs)


def test_the_wheel_alone_measures_and_sweeps(installed):
    folder, programs = installed
    place = run(programs / "python", "-c", "import hpcfl; print(hpcfl.__file__)", folder=folder)
    about = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = run(programs / "python", "-c", about, folder=folder)
    assert Path(place).is_relative_to(programs.parent)
    assert f"Programming Language :: Python :: {version.strip()}" in PROJECT["classifiers"]

    small = ("--devices", 5, "--dim", 100, "--rounds", 2)
    told = hpcfl(installed, "bench", "secagg", *small, "--output", "one.h5")
    assert "\nHPCFL valid: true\n" in told
    hpcfl(installed, "sweep", "small", "--output", "small")

    runs, errors = load_usable(find([folder, folder / "small"]))
    assert errors == []
    assert len(runs) == 1 + len(resolve(read(locate("small"))))
    assert {found.status for found in runs} == {"complete"}
    assert all(found.validated.all() for found in runs)


# The result does not depend on the Python version, so one is enough.
@pytest.mark.parametrize("installed", PYTHONS[:1], indirect=True)
def test_the_wheel_alone_has_what_the_commands_need(installed):
    folder, programs = installed
    assert "bench" in hpcfl(installed, "--help")
    told = run(
        *(programs / "mpirun", "-n", 2, "--oversubscribe"),
        *("hpcfl", "bench", "sparse", "--devices", 5, "--dim", 100, "--output", "mpi.h5"),
        folder=folder,
        path=programs,
    )
    # Only one of two ranks prints it.
    assert told.count("HPCFL valid: true\n") == 1
    assert "sparse" in hpcfl(installed, "report", "mpi.h5")
    assert "8 pending" in hpcfl(installed, "sweep", "table-1", "--dry-run")
    shutil.copy(ROOT / "examples" / "own_protocol.py", folder)
    told = hpcfl(installed, "bench", "own_protocol:SignSum", "--devices", 5, "--dim", 100)
    assert "\nHPCFL valid: true\n" in told
    assert "problem" not in hpcfl(installed, "doctor")
    for kind in KINDS:
        script = (ROOT / "jobs" / "slurm" / f"{kind}.sbatch").read_text()
        assert hpcfl(installed, "slurm", "render", kind) == script
