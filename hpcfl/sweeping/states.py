"""How far the cells of a sweep are, as their results files tell, and who runs which."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.results.reader import Run, load
from hpcfl.results.resuming import joined
from hpcfl.results.schema import CHECKPOINT_SUFFIX, Metric
from hpcfl.results.writer import complete
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
    run: Run | None = None  # what is to be read of it: the parts of a training are one
    place: Path | None = None  # where the next launch writes; None if it is finished
    resume: Path | None = None  # what that goes on from: the results file, or a checkpoint
    useless: tuple[Path, ...] = ()  # results files that it cannot go on from

    @property
    def rounds(self) -> int:
        """Number of rounds that are finished, and need not be played again."""
        counts = self.state == FINISHED or self.resume is not None
        return self.run.rounds if counts and self.run is not None else 0


def look(folder: Path, cell: Cell) -> Progress:
    """Return how far a cell is."""
    files = parts(folder, cell)
    if not files:
        return Progress(PENDING, place=folder / cell.file)
    runs: list[Run] = []
    with suppress(HpcflError):  # what is behind a damaged file belongs to nothing
        for file in files:
            runs.append(load(file))
    status = runs[-1].status if len(runs) == len(files) else ""
    if status == "complete":
        return Progress(FINISHED, joined(runs)[0])
    # Nothing goes on from a wrong aggregate: it is kept as evidence.
    if all(run.validated.all() for run in runs):
        state = FAILED if status == "failed" else PARTIAL
        if cell.algorithm is None and runs and runs[0].rounds:
            return Progress(state, runs[0], files[0], resume=files[0])
        kept = [number for number, _ in enumerate(runs) if _checkpoint(files[number]).exists()]
        if cell.algorithm is not None and kept:
            stop = kept[-1] + 1
            run, place = joined(runs[:stop])[0], _part(folder, cell, stop)
            resume, useless = _checkpoint(files[stop - 1]), tuple(files[stop:])
            return Progress(state, run, place, resume, useless)
    state = FAILED if status == "failed" else INCOMPLETE
    return Progress(state, place=files[0], useless=tuple(files))


def parts(folder: Path, cell: Cell) -> list[Path]:
    """Return the results files that there are of a cell, in their order.

    There is one of a benchmark, which is continued in place, and one of every launch of a training.
    """
    files: list[Path] = []
    while (file := _part(folder, cell, len(files))).exists():
        files.append(file)
        if cell.algorithm is None:
            break
    return files


def end(folder: Path, cell: Cell, found: Progress) -> bool:
    """Let a training that was killed behind its last round be complete; return whether it was.

    It has all its rounds, or has reached its target, but its file does not say so.
    """
    if cell.algorithm is None or found.resume is None or found.run is None:
        return False
    target = found.run.config.get("target_accuracy")
    accuracy = found.run.training[Metric.ACCURACY]
    reached = isinstance(target, float) and accuracy.size > 0 and bool(accuracy[-1] >= target)
    if found.rounds < cell.rounds and not reached:
        return False
    files = parts(folder, cell)
    complete(files[len(files) - len(found.useless) - 1])
    return True


def make_room(folder: Path, found: Progress) -> None:
    """Move what a cell cannot go on from into the folder ``incomplete``; nothing is deleted."""
    for file in found.useless:
        aside = folder / "incomplete"
        attempt = 1
        while (target := aside / f"{file.stem}-{attempt}.h5").exists():
            attempt += 1
        try:
            aside.mkdir(exist_ok=True)
            if _checkpoint(file).exists():
                os.rename(_checkpoint(file), _checkpoint(target))
            os.rename(file, target)
        except OSError as error:
            raise HpcflError(f"cannot move {file} to {target}: {error.strerror}") from None


def _part(folder: Path, cell: Cell, number: int) -> Path:
    first = folder / cell.file
    return first.with_stem(f"{first.stem}-part{number + 1}") if number else first


def _checkpoint(file: Path) -> Path:
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
