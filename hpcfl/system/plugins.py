"""Loads users' own code, named ``MODULE:NAME``, and reports its exceptions.

A protocol, an algorithm or a model in a user's own file may fail in any way in the middle of a
round. The message names the line of the user's code; errors of hpcfl itself keep their traceback.
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

# Packages, or modules outside any package, from which the user's own code was loaded.
LOADED: set[str] = set()
# How the file names of Python's library and of installed packages begin.
_INSTALLED = (
    "<",  # frozen into Python, or generated
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def load_object(name: str) -> Any:
    """Return the object ``MODULE:NAME``, from an installed module or the current folder.

    Raises the errors of Python's import and of the module itself, or an ImportError if the module
    ends the program.
    """
    module, _, attribute = name.partition(":")
    # The current folder comes last, so that its files never hide an installed module. It stays on
    # the path, because the user's code may import its neighbours later.
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
    """Turn exceptions of a user's code, including `SystemExit`, into an `OwnCodeError`.

    Its message begins with `where`, the place in the run, such as ``round 3, phase upload``.
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
    """Return the error to report for a user's code or a limit of the machine, None for a bug."""
    said = _raised_by_own(error)
    return errors.explained(error) if said is None else OwnCodeError(said)


def _raised_by_own(error: BaseException) -> str | None:
    """Return a sentence about an exception of a user's code, or of hpcfl where it used that code.

    Return None if no such code was loaded, or if a limit of the machine is the reason.
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
    # A signal handler, which may interrupt the user's code anywhere, is meant to end the program.
    if isinstance(error, SystemExit) and mine[-1] != frames[-1]:
        return None
    (called, _), (frame, line) = mine[0], mine[-1]
    return f"{called.f_code.co_qualname} raised {raised} ({frame.f_code.co_filename}:{line})"


def _is_own(frame: FrameType) -> bool:
    """Return whether a frame belongs to a user's code."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package == "hpcfl":
        return False
    return package in LOADED or not frame.f_code.co_filename.startswith(_INSTALLED)
