"""How far the cells of a sweep are, as their results files tell, and who runs which."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import HpcflError
from hpcfl.results.reader import Run, load
from hpcfl.results.resuming import joined
from hpcfl.results.schema import CHECKPOINT_SUFFIX, Metric
from hpcfl.results.writer import complete
from hpcfl.sweeping.cells import Cell

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

FINISHED = "finished"
PENDING = "pending"
PARTIAL = "partial"
INCOMPLETE = "incomplete"
FAILED = "failed"

_LOCK_NAME = ".sweep.lock"
_ASIDE = "incomplete"


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
        return Progress(PENDING, place=_part(folder, cell, 0))
    # What is behind a damaged file belongs to nothing.
    runs = _readable(files)
    last = runs[-1] if len(runs) == len(files) else None
    if last is not None and last.status == "complete":
        return Progress(FINISHED, joined(runs)[0])
    failed = last is not None and last.status == "failed"
    state = FAILED if failed else PARTIAL
    # Nothing goes on from a wrong aggregate: it is kept as evidence.
    if all(run.validated.all() for run in runs):
        if cell.algorithm is None:
            if runs and runs[0].rounds:
                return Progress(state, runs[0], files[0], resume=files[0])
        else:
            kept = [n for n, _ in enumerate(runs) if _checkpoint(files[n]).exists()]
            if kept:
                last_kept = kept[-1]
                return Progress(
                    state,
                    joined(runs[: last_kept + 1])[0],
                    _part(folder, cell, last_kept + 1),
                    resume=_checkpoint(files[last_kept]),
                    useless=tuple(files[last_kept + 1 :]),
                )
    state = FAILED if failed else INCOMPLETE
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

    Nothing is left to be played, but its file does not say so. An HpcflError says that it cannot be
    written to.
    """
    if cell.algorithm is None or found.resume is None or not _over(found, cell):
        return False
    files = parts(folder, cell)
    complete(files[len(files) - len(found.useless) - 1])
    return True


def _over(found: Progress, cell: Cell) -> bool:
    """Return whether a training has all its rounds, or has reached its target."""
    if found.rounds >= cell.rounds or found.run is None:
        return found.rounds >= cell.rounds
    target = found.run.config.get("target_accuracy")
    accuracy = found.run.training[Metric.ACCURACY]
    return isinstance(target, float) and found.rounds > 0 and bool(accuracy[-1] >= target)


def make_room(folder: Path, found: Progress) -> None:
    """Move what a cell cannot go on from into the folder ``incomplete``; nothing is deleted.

    An HpcflError says that it cannot be moved.
    """
    for file in found.useless:
        aside = folder / _ASIDE
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


def _readable(files: Sequence[Path]) -> list[Run]:
    """Return the runs of results files, up to the first that cannot be read."""
    runs: list[Run] = []
    with suppress(HpcflError):
        for file in files:
            runs.append(load(file))
    return runs


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
