"""What comes with hpcfl by name, and classes of the user's own: protocols and algorithms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

from hpcfl.errors import UsageError, no_such
from hpcfl.system.plugins import load_class

# Names stand in those of files, in reports, in lines for other programs and in key derivations.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")


class Registered(NamedTuple):
    """Where a class is, and what commands say of it without importing it."""

    home: str  # MODULE:CLASS
    about: str  # one line for the help
    kind: str = ""  # what class of algorithms it is listed with


def registry(package: str, lines: Mapping[str, tuple[str, ...]]) -> dict[str, Registered]:
    """Return what is registered by name; homes are within the package."""
    return {name: Registered(f"{package}.{home}", *rest) for name, (home, *rest) in lines.items()}


def _called(kind: type[Any], method: str) -> str:
    """Return how a method of a class is called, as in ``decode(total)``."""
    found = getattr(kind, method, None)
    _, *arguments = signature(found).parameters if callable(found) else ("self",)
    return f"{method}({', '.join(arguments)})"


def find_class(
    name: str,
    known: Mapping[str, Registered],
    kind: type[Any],
    what: str,
    others: Sequence[str] = (),
) -> type[Any]:
    """Return the subclass of `kind` that is registered, or that ``MODULE:CLASS`` names.

    UsageError if there is none, or it is not complete; `what` it is, the error says, and what
    `others` could be meant.
    """
    if name not in known and ":" not in name:
        raise no_such(what, name, [*known, *others], also="or give MODULE:CLASS")
    if name in known:
        return load_class(known[name].home, kind, f"the {what} {name!r}")
    found = load_class(name, kind, f"the {what} {name!r}")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    own = getattr(found, "name", None)
    if not isinstance(own, str) or missing:
        lacks = ", ".join(_called(kind, method) for method in missing) or "a name"
        raise UsageError(f"the {what} {name!r} lacks {lacks}")
    if not _NAME.fullmatch(own):
        raise UsageError(
            f"the {what} {name!r} is called {own[:80]!r}, which cannot be in the name of a file: "
            "give its class a name of at most 64 letters, digits and - _ . +, such as 'my-sum'"
        )
    _check_declared(name, found, kind, what)
    if own in known and load_class(known[own].home, kind, own) is not found:
        raise UsageError(
            f"the {what} {name!r} is called {own!r}, as one that comes with hpcfl: give its class "
            "a name of its own"
        )
    return found


def _check_declared(name: str, found: type[Any], kind: type[Any], what: str) -> None:
    """Refuse a class that declares something in another type than `kind` does, by UsageError."""
    for attribute, default in vars(kind).items():
        own = getattr(found, attribute, None)
        if attribute.startswith("_") or not isinstance(default, (bool, int, str)):
            continue
        # A property, or whatever else a class works out, is seen only in its objects.
        if type(own) is not type(default) and not hasattr(type(own), "__get__"):
            raise UsageError(
                f"the {what} {name!r} has {attribute} = {own!r}; it must be of the "
                f"type {type(default).__name__}"
            )
