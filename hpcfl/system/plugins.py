"""Code of the user's that hpcfl is told to load, as ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import operator
import sys
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError

# Packages, and modules of none, that a user has named code in.
LOADED: set[str] = set()


def package_of(module: str) -> str:
    """Return the outermost package of a module, or the module itself if it is in none."""
    return module.partition(".")[0]


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
    LOADED.add(package_of(module))
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
        raise UsageError(f"{what} cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UsageError(
            f"{what} must be a subclass of {kind.__module__}.{kind.__qualname__}, which {name} "
            "is not"
        )
    return found
