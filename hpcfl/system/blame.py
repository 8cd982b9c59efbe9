"""Says in a sentence what code of a user's own raised in a round, and where.

A protocol, an algorithm or a model in a file of a user's is called in the middle of a round, and
fails there in any way. Its author is to be told the line; a mistake of hpcfl keeps its traceback.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hpcfl import errors
from hpcfl.errors import HpcflError, OwnCodeError
from hpcfl.system import plugins

_PACKAGE = plugins.package_of(__name__)
# Where Python's library and installed packages are.
_INSTALLED = (
    "<",  # what is frozen into Python, or made by it
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_LONGEST = 300  # letters of what was raised


@contextmanager
def blamed(where: str) -> Iterator[None]:
    """Raise what a user's code raises, `SystemExit` too, as an `OwnCodeError`.

    `where` in the run this is begins the sentence, such as ``round 3, phase upload``.
    """
    try:
        yield
    except HpcflError:
        raise
    except (Exception, SystemExit) as error:
        said = _raised_by_own(error)
        if said is None:
            raise
        raise OwnCodeError(f"{where}: {said}") from error


def explained(error: BaseException) -> HpcflError | None:
    """Return in a sentence what a user's code raised outside of rounds, or a machine refuses.

    None for a mistake of the program.
    """
    said = _raised_by_own(error) if plugins.LOADED else None
    return errors.explained(error) if said is None else OwnCodeError(said)


def _raised_by_own(error: BaseException) -> str | None:
    """Return in a sentence what a user's code raised; None if it was not a user's code that did."""
    if isinstance(error, MemoryError):
        return None
    frames = [*traceback.walk_tb(error.__traceback__)]
    mine = [(frame, line) for frame, line in frames if _is_own(frame)]
    if not mine:
        return None
    # The handler of a signal, which may come at any time, ends the program as it should.
    if isinstance(error, SystemExit) and mine[-1] != frames[-1]:
        return None
    (called, _), (frame, line) = mine[0], mine[-1]
    words = _words(error)
    raised = type(error).__name__ + (f": {words}" if words else "")
    return f"{called.f_code.co_qualname} raised {raised} ({frame.f_code.co_filename}:{line})"


def _words(error: BaseException) -> str:
    """Return what an error says, in a line; "" if it fails to say it."""
    try:
        return " ".join(str(error).split())[:_LONGEST]
    except Exception:  # of a user's own class
        return ""


def _is_own(frame: FrameType) -> bool:
    """Return whether a frame is of a user's code."""
    package = plugins.package_of(str(frame.f_globals.get("__name__", "")))
    if package == _PACKAGE:
        return False
    return package in plugins.LOADED or not frame.f_code.co_filename.startswith(_INSTALLED)
