"""Protocols and algorithms by name: those of hpcfl, and the user's own classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcfl.errors import UsageError, no_such
from hpcfl.system.plugins import load_class

# Names occur in file names, reports, lines for other programs and key derivations.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")


class Registered(NamedTuple):
    """The location of a class, and its description for commands that do not import it."""

    home: str  # MODULE:CLASS
    about: str  # one line for the help
    kind: str = ""  # group of algorithms in which it is listed


def registry(package: str, lines: Mapping[str, tuple[str, ...]]) -> dict[str, Registered]:
    """Return the registered classes by name; homes are relative to the package."""
    return {name: Registered(f"{package}.{home}", *rest) for name, (home, *rest) in lines.items()}


def find_class(
    name: str,
    known: Mapping[str, Registered],
    kind: type[Any],
    what: str,
    others: Sequence[str] = (),
) -> type[Any]:
    """Return the registered subclass of `kind`, or the one that ``MODULE:CLASS`` names.

    Raise UsageError if there is none or it is incomplete. The error calls the class a `what`, and
    also lists `others`, further names that the user may have meant.
    """
    if name in known:
        return load_class(known[name].home, kind, f"the {what} {name!r}")
    if ":" not in name:
        raise no_such(what, name, [*known, *others], also="or give MODULE:CLASS")
    found = load_class(name, kind, f"the {what} {name!r}")
    own: Any = getattr(found, "name", None)
    missing = [*sorted(found.__abstractmethods__), *([] if isinstance(own, str) else ["name"])]
    if missing:
        raise UsageError(f"the {what} {name!r} lacks {', '.join(missing)}")
    if not _NAME.fullmatch(own) or own in known:
        raise UsageError(
            f"the {what} {name!r} is called {own[:80]!r}: give its class a name of at most 64 "
            f"letters, digits and - _ . +, and not that of a {what} that comes with hpcfl"
        )
    return found
