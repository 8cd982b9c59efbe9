"""Code of the user's that hpcfl is told to load, as ``MODULE:NAME``, and what it raises.

A protocol, an algorithm or a model in a user's own file may fail in any way in the middle of a
round. Its author is told the line; a mistake of hpcfl keeps its traceback.
"""

from __future__ import annotations

import importlib
import operator
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hpcfl import errors
from hpcfl.errors import HpcflError, OwnCodeError, UsageError

# Packages, and modules of none, that a user has named code in.
LOADED: set[str] = set()
# Where Python's library and installed packages are.
_INSTALLED = (
    "<",  # what is frozen into Python, or made by it
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def load_object(name: str) -> Any:
    """Return what ``MODULE:NAME`` names, from an installed module or the current folder.

    Raises what Python's own import does, and whatever the module raises; an ImportError where it
    ends the program.
    """
    module, _, attribute = name.partition(":")
    # Last, so that a file of the current folder never hides an installed module. It stays there,
    # because the user's code may import its neighbours later.
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    package = module.partition(".")[0]
    if package != "hpcfl":
        LOADED.add(package)
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except SystemExit as end:
        raise ImportError(
            f"the module {module} ended the program (exit status {end.code}) when it was imported: "
            "put what it runs by itself under if __name__ == '__main__'"
        ) from None


def load_class(name: str, kind: type[Any], what: str) -> type[Any]:
    """Return the subclass of `kind` that ``MODULE:NAME`` names; errors call it `what`."""
    try:
        found = load_object(name)
    except Exception as error:
        place = ""
        if isinstance(error, ModuleNotFoundError):
            place = " (MODULE is a module of the current folder or an installed one, without .py)"
        raise UsageError(f"{what} cannot be loaded: {error}{place}") from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UsageError(
            f"{what} must be a subclass of {kind.__module__}.{kind.__qualname__}, which {name} "
            "is not"
        )
    return found


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
    said = _raised_by_own(error)
    return errors.explained(error) if said is None else OwnCodeError(said)


def _raised_by_own(error: BaseException) -> str | None:
    """Return in a sentence what a user's code raised, or hpcfl where it used that code.

    None where no such code was loaded, and for what the machine refuses.
    """
    frames = [*traceback.walk_tb(error.__traceback__)]
    mine = [(frame, line) for frame, line in frames if _is_own(frame)]
    words = " ".join(str(error).split())[:300]
    raised = type(error).__name__ + (f": {words}" if words else "")
    of_the_machine = isinstance(error, SystemExit) or errors.explained(error) is not None
    if isinstance(error, MemoryError) or (not mine and (of_the_machine or not LOADED)):
        return None
    if not mine:
        frame, line = frames[-1]
        return (
            f"{raised} ({frame.f_code.co_filename}:{line}), where hpcfl uses what your code takes "
            "and returns: see docs/own-protocol.md"
        )
    # The handler of a signal, which may come at any time, ends the program as it should.
    if isinstance(error, SystemExit) and mine[-1] != frames[-1]:
        return None
    (called, _), (frame, line) = mine[0], mine[-1]
    return f"{called.f_code.co_qualname} raised {raised} ({frame.f_code.co_filename}:{line})"


def _is_own(frame: FrameType) -> bool:
    """Return whether a frame is of a user's code."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package == "hpcfl":
        return False
    return package in LOADED or not frame.f_code.co_filename.startswith(_INSTALLED)
