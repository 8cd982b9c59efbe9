"""The progress of a sweep's cells, read from their results files, and claims on cells."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.results.reader import Run, load
from hpcfl.results.schema import CHECKPOINT_SUFFIX
from hpcfl.sweeping.cells import Cell
from hpcfl.values import dataclass

FINISHED = "finished"
PENDING = "pending"
PARTIAL = "partial"
INCOMPLETE = "incomplete"
FAILED = "failed"

_LOCK_NAME = ".sweep.lock"


@dataclass(frozen=True)
class Progress:
    """The progress of a cell.

    A partial cell has finished rounds from which the next launch continues. An incomplete cell was
    killed before its first such round, or is damaged. Either may be running now.
    """

    state: str
    run: Run | None = None  # its readable results
    resumable: bool = False  # whether the next launch continues from them

    @property
    def rounds(self) -> int:
        """Number of finished rounds that need not run again."""
        counts = self.state == FINISHED or self.resumable
        return self.run.rounds if counts and self.run is not None else 0


def look(folder: Path, cell: Cell) -> Progress:
    """Return the progress of a cell."""
    file = folder / cell.file
    if not file.exists():
        return Progress(PENDING)
    try:
        run = load(file)
    except HpcflError:
        return Progress(INCOMPLETE)
    if run.status == "complete":
        return Progress(FINISHED, run)
    failed = run.status == "failed"
    begun = run.rounds if cell.algorithm is None else checkpoint(file).exists()
    # A run with a wrong aggregate is not continued; it is kept as evidence.
    if begun and run.validated.all():
        return Progress(FAILED if failed else PARTIAL, run, resumable=True)
    return Progress(FAILED if failed else INCOMPLETE)


def make_room(folder: Path, cell: Cell) -> None:
    """Move a cell's unusable files into the folder ``incomplete``; nothing is deleted."""
    file, aside = folder / cell.file, folder / "incomplete"
    if not file.exists():
        return
    attempt = 1
    while (target := aside / f"{file.stem}-{attempt}.h5").exists():
        attempt += 1
    try:
        aside.mkdir(exist_ok=True)
        for old, new in ((checkpoint(file), checkpoint(target)), (file, target)):
            if old.exists():
                os.rename(old, new)
    except OSError as error:
        raise HpcflError(f"cannot move {file} to {target}: {error.strerror}") from None


def checkpoint(file: Path) -> Path:
    """Return the path of a training's checkpoint, beside its results file."""
    return file.with_suffix(CHECKPOINT_SUFFIX)


@contextmanager
def claimed(folder: Path, cell: Cell) -> Iterator[bool]:
    """Claim a cell against other processes; yield False if another one has claimed it.

    A claim is a lock on one byte of a hidden file. The system releases it when the process ends,
    for whatever reason. On a file system without locks nothing is claimed.
    """
    with (folder / _LOCK_NAME).open("ab") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cell.index)
            free = True
        except OSError as error:
            free = not isinstance(error, BlockingIOError | PermissionError)
        yield free
