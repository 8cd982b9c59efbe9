"""Files that are written at once, locked, or built of a commit."""

import shutil
import subprocess
import sys

import h5py
import pytest

from hpcfl.errors import HpcflError
from hpcfl.system import environment, hdf5, revision
from hpcfl.system.outputs import replacing, without_home


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path):
    path, target = tmp_path / "new" / "file", tmp_path / "target"
    with replacing(path) as draft:
        draft.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first"
    with pytest.raises(AttributeError), replacing(path) as draft:
        draft.write_bites("second")
    with pytest.raises(FileExistsError), replacing(path, keep=True) as draft:
        draft.write_text("second")
    assert path.read_text() == "first"
    # What a link points to is replaced, and not the link.
    target.write_text("old")
    (tmp_path / "link").symlink_to(target)
    with replacing(tmp_path / "link") as draft:
        draft.write_text("new")
    assert (target.read_text(), (tmp_path / "link").is_symlink()) == ("new", True)
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_home_folder_is_not_told(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert without_home("/home/me/a /home/me2 x/home/me") == "~/a /home/me2 x/home/me"
    monkeypatch.setenv("HOME", "/")
    assert without_home("/a") == "/a"


def test_a_file_that_somebody_writes_is_refused_and_one_without_locks(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w"):
        code = (
            "import pathlib, sys; from hpcfl.system import hdf5; "
            "hdf5.opened(pathlib.Path(sys.argv[1]), 'r')"
        )
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert "is being written by another process" in other.stderr

    # As NFS without lockd says.
    def refuse(path, mode, locking, **more):
        raise OSError("unable to lock file, errno = 37")

    monkeypatch.setattr(h5py, "File", refuse)
    with pytest.raises(HpcflError, match="has no locks"):
        hdf5.opened(tmp_path / "y.h5", "x")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder):
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return git(folder, "rev-parse", "HEAD")


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")


@needs_git
@pytest.mark.parametrize(
    ("file", "dirty"),
    [("hpcfl/__init__.py", True), ("hpcfl/new.py", True), ("notes.txt", False)],
)
def test_the_commit_that_ran_is_recorded_and_whether_its_code_was_changed(
    tmp_path, monkeypatch, file, dirty
):
    monkeypatch.setattr(revision, "_ROOT", tmp_path)
    (tmp_path / "hpcfl").mkdir()
    (tmp_path / "hpcfl/__init__.py").write_text("")
    made = commit(tmp_path)
    changes = []
    for text in ("x = 1\n", "x = 2\n", "x = 1\n"):
        (tmp_path / file).write_text(text)
        facts = environment.capture_local()
        assert (facts["git_commit"], facts["git_dirty"]) == (made, dirty)
        changes.append(facts["git_changes"])
    # Other changes are another state of the code.
    assert changes[0] == changes[2]
    assert (changes[0] != changes[1]) is dirty
    suffix = f".{changes[2]}.dirty" if dirty else ""
    build = f"{revision.RELEASE}+g{made[:12]}{suffix}"
    assert revision.version_to_build(tmp_path) == build


def test_sources_without_a_repository_are_built_too(tmp_path, monkeypatch):
    assert revision.version_to_build(tmp_path) == revision.RELEASE
    (tmp_path / "PKG-INFO").write_text("Name: hpcfl\nVersion: 0.1.0+gabc\n")
    assert revision.version_to_build(tmp_path) == "0.1.0+gabc"
    # What is installed here is not the package of this folder.
    monkeypatch.setattr(revision, "_ROOT", tmp_path)
    assert revision.version() == revision.RELEASE
    assert revision.current() == (None, None, None)
