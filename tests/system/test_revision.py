"""Which commit a checkout or a build is of."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hpcfl
from hpcfl.system import environment, revision

ROOT = Path(hpcfl.__file__).parents[1]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository without commits that the package seems to be run from."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    (tmp_path / "hpcfl").mkdir()
    (tmp_path / "hpcfl/__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(hpcfl, "__file__", str(tmp_path / "hpcfl/__init__.py"))
    return tmp_path


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("file", "dirty"),
    [(None, False), ("hpcfl/__init__.py", True), ("hpcfl/new.py", True), ("notes.txt", False)],
)
def test_the_commit_that_ran_is_recorded_and_whether_its_code_was_changed(repository, file, dirty):
    assert environment.capture_local()["git_commit"] is None  # before there is one
    made = commit(repository)
    if file:
        (repository / file).write_text("x = 1\n")
    facts = environment.capture_local()

    assert (facts["git_commit"], facts["git_dirty"]) == (made, dirty)
    assert (facts["git_changes"] is not None) is dirty


@pytest.mark.parametrize("file", ["hpcfl/__init__.py", "hpcfl/new.py"])
def test_other_changes_are_another_state_of_the_code(repository, file):
    commit(repository)
    found = []
    for text in ("x = 1\n", "x = 2\n", "x = 1\n"):
        (repository / file).write_text(text)
        found.append(revision.current().changes)

    assert found[0] == found[2] != found[1]


def test_an_installed_package_does_not_claim_the_repository_around_it(repository, monkeypatch):
    commit(repository)
    installed = repository / "site-packages/hpcfl"
    installed.mkdir(parents=True)
    monkeypatch.setattr(hpcfl, "__file__", str(installed / "__init__.py"))

    assert revision.current() == (None, None, None)


def test_a_build_is_called_after_its_commit(repository):
    made = commit(repository)
    clean = revision.version_to_build(repository)
    (repository / "hpcfl/__init__.py").write_text("x = 1\n")
    dirty = revision.version_to_build(repository)

    assert clean == f"{revision.RELEASE}+g{made[:12]}"
    assert revision._of_version(clean) == (made[:12], False, None)
    assert revision._of_version(dirty) == (made[:12], True, revision.current().changes)


def test_sources_without_a_repository_are_built_too(tmp_path):
    assert revision.version_to_build(tmp_path) == revision.RELEASE
    (tmp_path / "PKG-INFO").write_text("Name: hpcfl\nVersion: 0.1.0+gabc\n")
    assert revision.version_to_build(tmp_path) == "0.1.0+gabc"


def test_another_installed_copy_does_not_say_which_version_runs(repository):
    # What is installed here is not the package of this folder.
    assert revision.version() == revision.RELEASE


@pytest.fixture
def wheel(tmp_path):
    """Return a function that builds a wheel of a folder, with the setuptools that are here."""
    found = subprocess.run(
        [sys.executable, "-c", "import setuptools; print(setuptools.__version__)"],
        capture_output=True,
        text=True,
    )
    if not found.stdout or int(found.stdout.partition(".")[0]) < 77:
        pytest.skip("setuptools 77 is not installed here")

    def build(folder):
        out = tmp_path / "wheels"
        program = f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return out / done.stdout.split()[-1]

    return build


@pytest.mark.parametrize("in_git", [True, False])
def test_a_wheel_knows_its_commit_and_runs_without_the_sources(tmp_path, wheel, in_git):
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "hpcfl", sources / "hpcfl")
    shutil.copy(ROOT / ".gitignore", sources)
    if in_git:
        if shutil.which("git") is None:
            pytest.skip("no git here")
        git(sources, "init", "--quiet")
    made = commit(sources)[:12] if in_git else None
    with zipfile.ZipFile(wheel(sources)) as archive:
        archive.extractall(tmp_path / "installed")
    program = (
        "import hpcfl; from hpcfl.system import revision; "
        "print(hpcfl.__version__, *revision.current())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
    )

    version = f"{revision.RELEASE}+g{made}" if in_git else revision.RELEASE
    state = f"{made} False None" if in_git else "None None None"
    assert done.stdout.strip() == f"{version} {state}", done.stderr


def test_starting_does_not_look_for_the_version():
    program = "import sys, hpcfl.cli; print('importlib.metadata' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.strip() == "False", done.stderr
