"""The version of the suite: its release, and the commit that it was built from or runs from.

This module needs only the standard library, because ``setup.py`` imports it to name a build.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

RELEASE = "0.1.0"
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "hpcfl"
_GIT_SECONDS = 5.0
# Number of digits of the commit in a build's version.
COMMIT_DIGITS = 12


class Revision(NamedTuple):
    """A state of the code; unknown fields are None."""

    commit: str | None = None
    dirty: bool | None = None  # whether the package differs from the commit
    changes: str | None = None  # a digest of all differences, if there are any


def version() -> str:
    """Return the version of the installed build, or the release in a checkout or another copy."""
    from importlib import metadata

    if (_ROOT / ".git").exists():
        return RELEASE
    try:
        installed = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        return RELEASE
    here = Path(str(installed.locate_file(_PACKAGE))).resolve() == _ROOT / _PACKAGE
    return installed.version if here else RELEASE


def current() -> Revision:
    """Return the state of the running code: that of its checkout, or else that of its build."""
    state = _of_checkout(_ROOT)
    if state.commit is None:
        found = re.search(r"\+g([0-9a-f]+)(?:\.(\w+)\.dirty)?$", version())
        return Revision(found[1], found[2] is not None, found[2]) if found else state
    return state


def _of_checkout(root: Path) -> Revision:
    """Return the state of the package in a folder, unknown if it is not a git repository."""
    # An installed package may lie within another repository, whose commit does not count.
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if not commit:
        return Revision()
    status = _git(root, "status", "--porcelain", "--", _PACKAGE)
    if not status:
        return Revision(commit.decode(), None if status is None else False)
    digest = hashlib.sha256(_git(root, "diff", "--binary", "HEAD", "--", _PACKAGE) or b"")
    added = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", _PACKAGE) or b""
    for name in filter(None, added.split(b"\0")):
        digest.update(name + (root / os.fsdecode(name)).read_bytes())
    return Revision(commit.decode(), True, digest.hexdigest()[:COMMIT_DIGITS])


def version_to_build(root: Path) -> str:
    """Return the version of a build of the sources in a folder: the release and the commit.

    Without a repository, it is the version of the unpacked source archive, or the release.
    """
    state = _of_checkout(root)
    if state.commit is not None:
        dirty = f".{state.changes}.dirty" if state.dirty else ""
        return f"{RELEASE}+g{state.commit[:COMMIT_DIGITS]}{dirty}"
    archive = root / "PKG-INFO"
    told = archive.read_text(encoding="utf-8") if archive.exists() else ""
    found = re.search(r"^Version: (\S+)$", told, re.MULTILINE)
    return found[1] if found else RELEASE


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            # Without the lock, which the user's own git command may need at the same time.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
