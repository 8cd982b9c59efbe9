"""How far the cells of a sweep are, as their results files tell, and who runs which."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.results.reader import Run, load
from hpcfl.sweeping.cells import Cell

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

FINISHED = "finished"
PENDING = "pending"
INCOMPLETE = "incomplete"
FAILED = "failed"

_LOCK_NAME = ".sweep.lock"
_ASIDE = "incomplete"


def state(folder: Path, cell: Cell) -> tuple[str, Run | None]:
    """Return how far a cell is, and its run if it is finished.

    Incomplete is what was killed, is at work right now, or is damaged.
    """
    path = folder / cell.file
    if not path.exists():
        return PENDING, None
    try:
        run = load(path)
    except HpcflError:
        return INCOMPLETE, None
    if run.status == "complete":
        return FINISHED, run
    return FAILED if run.status == "failed" else INCOMPLETE, None


def set_aside(folder: Path, cell: Cell) -> Path | None:
    """Move what is left of an earlier attempt into the folder ``incomplete``; nothing is deleted.

    Returns where it is now, None if there was nothing; HpcflError if it cannot be moved.
    """
    path = folder / cell.file
    if not path.exists():
        return None
    aside = folder / _ASIDE
    attempt = 1
    while (target := aside / f"{path.stem}-{attempt}.h5").exists():
        attempt += 1
    try:
        aside.mkdir(exist_ok=True)
        os.rename(path, target)
    except OSError as error:
        raise HpcflError(f"cannot move {path} to {target}: {error.strerror}") from None
    return target


class Claims:
    """Keeps processes that work in one folder from running the same cell.

    A claim is a lock on one byte of a hidden file. The system drops it when the process ends,
    however that happens. On a file system without locks nothing is claimed.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if fcntl is not None:
            with suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(folder / _LOCK_NAME, flags, 0o666)

    def take(self, cell: Cell) -> bool:
        """Return False if another process has claimed the cell, else claim it."""
        if self._descriptor is None:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cell.index)
        except OSError as error:
            return not isinstance(error, BlockingIOError | PermissionError)
        return True

    def drop(self, cell: Cell) -> None:
        """Give a claim up."""
        if self._descriptor is not None:
            with suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, cell.index)

    def close(self) -> None:
        """Give all of them up."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
