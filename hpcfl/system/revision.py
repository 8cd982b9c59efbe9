"""Which version of the suite this is: its release, and the commit it was built from or is run from.

Only the standard library is needed: ``setup.py`` asks here what a build is to be called.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import hpcfl

RELEASE = "0.1.0"

_GIT_SECONDS = 5.0
# As many digits as a build's version has of its commit.
COMMIT_DIGITS = 12


class Revision(NamedTuple):
    """A state of the code; None where it is not known."""

    commit: str | None = None
    dirty: bool | None = None  # whether the package differs from the commit
    changes: str | None = None  # a digest of all differences, if there are any


def version() -> str:
    """Return the version: that of the build, and where there is none, the release.

    What is installed may be another copy than the one that runs, such as a checkout that
    ``PYTHONPATH`` names: its version is not this one's.
    """
    from importlib import metadata

    try:
        installed = metadata.distribution("hpcfl")
    except metadata.PackageNotFoundError:
        return RELEASE
    if Path(str(installed.locate_file("hpcfl"))).resolve() != _package().resolve():
        return RELEASE
    # The metadata of a build within a checkout tell of the commit of that day.
    return RELEASE if (_package().parent / ".git").exists() else installed.version


def current() -> Revision:
    """Return the state of the code that runs: its checkout's, else the one it was built from."""
    found = of_checkout(_package().parent)
    return _of_version(version()) if found.commit is None else found


def of_checkout(root: Path) -> Revision:
    """Return the state of the package in a folder, if that is a repository of git."""
    # An installed package may lie within somebody else's repository.
    if not (root / ".git").exists():
        return Revision()
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return Revision()
    package = "hpcfl"
    status = _git(root, "status", "--porcelain", "--", package)
    if not status:
        return Revision(commit.decode(), None if status is None else False)
    digest = hashlib.sha256(_git(root, "diff", "--binary", "HEAD", "--", package) or b"")
    added = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", package) or b""
    for name in filter(None, added.split(b"\0")):
        path = root / os.fsdecode(name)
        digest.update(name + (path.read_bytes() if path.is_file() else b""))
    return Revision(commit.decode(), True, digest.hexdigest()[:COMMIT_DIGITS])


def version_to_build(root: Path) -> str:
    """Return what a build of the sources in a folder is called: the release, and the commit.

    Without a repository, the version of the source archive that was unpacked there, or the release.
    """
    state = of_checkout(root)
    if state.commit is not None:
        dirty = f".{state.changes}.dirty" if state.dirty else ""
        return f"{RELEASE}+g{state.commit[:COMMIT_DIGITS]}{dirty}"
    try:
        told = (root / "PKG-INFO").read_text(encoding="utf-8")
    except OSError:
        return RELEASE
    found = re.search(r"^Version: (\S+)$", told, re.MULTILINE)
    return found[1] if found else RELEASE


def _of_version(text: str) -> Revision:
    found = re.search(r"\+g([0-9a-f]+)(?:\.(\w+)\.dirty)?$", text)
    return Revision(found[1], found[2] is not None, found[2]) if found else Revision()


def _package() -> Path:
    return Path(hpcfl.__file__).parent


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            # Reading must not take the lock that the user's own git command may want.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
