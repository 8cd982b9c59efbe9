"""Code of the user's that hpcfl is told to load, as ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def load_object(name: str) -> Any:
    """Return what ``MODULE:NAME`` names, from an installed module or the current folder.

    Raises
    ------
    ImportError, AttributeError, ValueError, TypeError
        As Python's own import does, and whatever the module raises.
    """
    module, _, attribute = name.partition(":")
    # Last, so that a file of the current folder never hides an installed module. It stays there,
    # because the user's code may import its neighbours later.
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    return getattr(importlib.import_module(module), attribute)
