"""Writes all files of all commands, so that no slip of a name costs a file.

What was measured is never overwritten. What can be made again takes the place of an older file of
its own kind, which a mark in it tells. A command checks all its outputs before it begins to work.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpcfl.errors import HpcflError, UsageError

# Where a mark is looked for: in so many bytes at the beginning of a file, and at its end.
_MARKED_BYTES = 1 << 16
# Of figures, in the formats' own fields for it.
MADE_BY = "made by hpcfl"


@dataclass(frozen=True)
class Kind:
    """A kind of files that commands write."""

    # What an older file has that may be replaced by one of this kind; None if none ever is.
    mark: bytes | None = None
    endings: tuple[str, ...] = ()  # of their names; none for any
    in_folder: bool = False  # whether a name that ends otherwise is that of a folder for them

    def is_folder(self, path: Path) -> bool:
        """Return whether a path names a folder for files of this kind, and not a file."""
        return self.in_folder and path.suffix.lower() not in self.endings

    def recognises(self, path: Path) -> bool:
        """Return whether there is a file of this kind, which may be replaced."""
        if self.mark is None or not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_MARKED_BYTES)
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MARKED_BYTES))
            return self.mark in head + b"\n" + file.read()


HDF5 = (".h5", ".hdf5", ".hdf", ".he5")
RESULTS = Kind(endings=HDF5, in_folder=True)
FOLDER = Kind(in_folder=True)
AGGREGATE = Kind(endings=(".npy", *HDF5))
TRANSCRIPT = Kind()
MANIFEST = Kind()
FIGURE = Kind(MADE_BY.encode(), (".png", ".svg", ".pdf"))
CALIBRATION = Kind(b'"format": "hpcfl-calibration/')
CHECKPOINT = Kind(b"next_round.npy")


def check(path: str | os.PathLike[str], kind: Kind) -> str:
    """Return how to speak of a file to be written, or a folder: by its path, and if it is replaced.

    A UsageError says that something is there that is not to be overwritten, or that the place
    cannot be written to.
    """
    import tempfile  # not by the ranks that write nothing

    path = Path(path)
    in_folder = kind.is_folder(path)
    if kind.endings and not kind.in_folder and path.suffix.lower() not in kind.endings:
        raise UsageError(f"{path} does not end in one of {', '.join(kind.endings)}")
    try:
        there = path.exists()
        if in_folder and there and not path.is_dir():
            raise UsageError(f"{path} is a file, and not a folder: choose another name")
        if not in_folder and there and not kind.recognises(path):
            raise UsageError(
                f"{path} exists already and is not overwritten: remove it or choose another name"
            )
        # Tried rather than asked: permission bits say nothing of quotas or read-only file systems.
        with tempfile.TemporaryFile(dir=nearest_folder(path if in_folder else path.parent)):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {path} ({reason}): choose another place") from error
    return f"{path} (replaced)" if there and not in_folder else str(path)


@contextmanager
def writing(path: Path, kind: Kind) -> Iterator[IO[bytes]]:
    """Yield a file, open for bytes, that appears whole under its name, or not at all.

    Folders are made. Raises what `check` does, and an HpcflError if the file cannot be written.
    """
    check(path, kind)
    try:
        with replacing(path, keep=kind.mark is None) as draft, draft.open("x+b") as file:
            yield file
    except OSError as error:
        raise HpcflError(
            f"cannot write {path} ({error.strerror or error}): make room, or choose another place"
        ) from None


def write(path: Path, kind: Kind, content: str) -> None:
    """Write a text in UTF-8; see `writing`."""
    with writing(path, kind) as file:
        file.write(content.encode())


@contextmanager
def replacing(path: Path, draft: Path | None = None, *, keep: bool = False) -> Iterator[Path]:
    """Yield a draft to be written, which then takes the place of a file at once.

    The draft is in the same folder, which is made if needed, and removed after any exception. A
    link stays, and its file is replaced. With `keep` FileExistsError is raised if there is a file.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft or path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        yield draft
        # Else a crash of the machine could leave the name to an empty file.
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        if keep and path.exists():
            raise FileExistsError(f"{path} exists")
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def nearest_folder(folder: Path) -> Path:
    """Return the folder, or that of its parents which is there and in which it would be made."""
    while not folder.exists():
        folder = folder.parent
    return folder


def without_home(text: str) -> str:
    """Return a text for a file that others may read: the home folder in paths is ``~``."""
    with suppress(RuntimeError):  # there is no home folder
        home = Path.home()
        if home != home.parent:  # of a container's user it may be the root
            return re.sub(rf"(?<![\w.-]){re.escape(str(home))}(?![\w.-])", "~", text)
    return text
