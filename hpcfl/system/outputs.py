"""Writes the files of all commands, so that a mistyped name never destroys a file.

Measurements are never overwritten. A file that can be made again replaces an older file of the same
kind, which a mark in it identifies. A command checks all its outputs before it begins to work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hpcfl.errors import HpcflError, UsageError
from hpcfl.values import dataclass

# A mark is searched for in this many bytes at the beginning and at the end of a file.
_MARKED_BYTES = 1 << 16
# The mark of figures, in the metadata of their formats.
MADE_BY = "made by hpcfl"


@dataclass(frozen=True)
class Kind:
    """A kind of file that commands write."""

    # Bytes in an older file of this kind, which may be replaced; None if no file may be replaced.
    mark: bytes | None = None
    endings: tuple[str, ...] = ()  # allowed endings of names; () allows any
    in_folder: bool = False  # whether a name with another ending means a folder for such files

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
POPULATION = Kind(b"uplink_mbps,", (".csv",))
CHECKPOINT = Kind(b"next_round.npy")


def check(path: str | os.PathLike[str], kind: Kind) -> str:
    """Return how messages name an output: by its path, with a note if it replaces an older file.

    Raises a UsageError if something at the path must not be overwritten, or if it cannot be
    written to.
    """
    import tempfile  # only on ranks that write

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
        # A trial, because permission bits do not show quotas or read-only file systems.
        with tempfile.TemporaryFile(dir=nearest_folder(path if in_folder else path.parent)):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {path} ({reason}): choose another place") from error
    return f"{path} (replaced)" if there and not in_folder else str(path)


@contextmanager
def writing(path: Path, kind: Kind) -> Iterator[IO[bytes]]:
    """Yield a file, open for bytes, that appears complete under its name, or not at all.

    Missing folders are made. Raises the errors of `check`, or an HpcflError if writing fails.
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
    """Write a text in UTF-8, as `writing` does."""
    with writing(path, kind) as file:
        file.write(content.encode())


@contextmanager
def replacing(path: Path, draft: Path | None = None, *, keep: bool = False) -> Iterator[Path]:
    """Yield the path of a draft to write, which then replaces a file atomically.

    The draft is in the same folder, which is made if needed. An exception removes the draft. If
    `path` is a link, its target is replaced. With `keep`, an old file raises FileExistsError.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft or path.with_name(f".{path.name[:50]}.{os.urandom(4).hex()}.part")
    try:
        yield draft
        # Otherwise a crash of the machine could leave an empty file under the name.
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        if keep and path.exists():
            raise FileExistsError(f"{path} exists")
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def nearest_folder(folder: Path) -> Path:
    """Return the folder, or else its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def without_home(text: str) -> str:
    """Return a text with ``~`` for the home folder in paths, for files that others may read."""
    with suppress(RuntimeError):  # there is no home folder
        home = Path.home()
        if home != home.parent:  # in a container it may be the root folder
            return re.sub(rf"(?<![\w.-]){re.escape(str(home))}(?![\w.-])", "~", text)
    return text
