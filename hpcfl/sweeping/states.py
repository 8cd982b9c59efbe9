"""How far the cells of a sweep are, as their results files tell, and who runs which."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.results.reader import Run, load
from hpcfl.results.schema import CHECKPOINT_SUFFIX
from hpcfl.sweeping.cells import Cell

FINISHED = "finished"
PENDING = "pending"
PARTIAL = "partial"
INCOMPLETE = "incomplete"
FAILED = "failed"

_LOCK_NAME = ".sweep.lock"


@dataclass(frozen=True)
class Progress:
    """How far a cell is.

    It is partial where rounds are finished that the next launch goes on from; incomplete what was
    killed before there were any, or is damaged. Either may be at work right now.
    """

    state: str
    run: Run | None = None  # what is to be read of it
    resumable: bool = False  # whether the next launch goes on from it

    @property
    def rounds(self) -> int:
        """Number of rounds that are finished, and need not be played again."""
        counts = self.state == FINISHED or self.resumable
        return self.run.rounds if counts and self.run is not None else 0


def look(folder: Path, cell: Cell) -> Progress:
    """Return how far a cell is."""
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
    # Nothing goes on from a wrong aggregate: it is kept as evidence.
    if begun and run.validated.all():
        return Progress(FAILED if failed else PARTIAL, run, resumable=True)
    return Progress(FAILED if failed else INCOMPLETE)


def make_room(folder: Path, cell: Cell) -> None:
    """Move what a cell cannot go on from into the folder ``incomplete``; nothing is deleted."""
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
    """Return where the checkpoint of a training is, beside its results file."""
    return file.with_suffix(CHECKPOINT_SUFFIX)


@contextmanager
def claimed(folder: Path, cell: Cell) -> Iterator[bool]:
    """Keep other processes from running a cell meanwhile; False if one does already.

    A claim is a lock on one byte of a hidden file. The system drops it when the process ends,
    however that happens. On a file system without locks nothing is claimed.
    """
    with (folder / _LOCK_NAME).open("ab") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cell.index)
            free = True
        except OSError as error:
            free = not isinstance(error, BlockingIOError | PermissionError)
        yield free
