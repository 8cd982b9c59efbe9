"""A client's record of what it has answered, outside of the state that a framework keeps for it.

A framework may give a client an old state again: after a crash between a reply and the saving of
the state, or because it plays two messages at once on the same state. Two answers of one step
from one state may reveal a vector: two uploads under the same masks give the difference of the
vectors. So a client claims each answer before it makes it, and no claim succeeds twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from hpcfl.errors import UsageError


class Journal(Protocol):
    """What a client asks before each answer; it must not forget, even if its machine fails."""

    def claim(self, run: str, round_index: int, step: int) -> bool:
        """Return whether nobody has claimed this step before, nor any step of a later round.

        The enrolment is the round -1.
        """


class FileJournal:
    """A journal in a folder of a file system that lasts, one empty file for each claim.

    Each client has a folder of its own. Files of earlier rounds of a run are removed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def claim(self, run: str, round_index: int, step: int) -> bool:
        """Return whether the claim is the first; UsageError if the folder cannot be written to."""
        # A run's name comes from the server.
        folder = self._folder / run.encode().hex()
        path = folder / f"{round_index + 1}-{step}"
        try:
            if not folder.exists():
                folder.mkdir(parents=True, exist_ok=True)
                _sync(folder.parent)
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                return False
            _sync(folder)
            rounds = {each: int(each.name.split("-")[0]) - 1 for each in folder.iterdir()}
            if max(rounds.values()) > round_index:
                return False
            for each, earlier in rounds.items():
                if earlier < round_index:
                    each.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write the journal {folder}: {error.strerror}") from None
        return True


def _sync(folder: Path) -> None:
    """Let the names in a folder survive a crash of the machine: the files are empty."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
