"""The pages of the Python API, for mkdocstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import hpcfl
from sitepages.markdown import code

# What the functions return, and what one's own protocol, algorithm or observer is a class of.
RETURNED = (
    "hpcfl.results.reader.Run",
    "hpcfl.results.comparison.Comparison",
    "hpcfl.results.summary.Summary",
    "hpcfl.report.table.Table",
)
BASES = (
    "hpcfl.comm.phases",
    "hpcfl.algorithms.aggregation.base.AggregationProtocol",
    "hpcfl.algorithms.aggregation.quantised.QuantisedProtocol",
    "hpcfl.algorithms.federated.base.FederatedAlgorithm",
    "hpcfl.algorithms.federated.private.PrivateAlgorithm",
    "hpcfl.rounds.observer.RoundObserver",
)
_ROLE = re.compile(r":[a-z]+:`(~?)([\w.]+)`")


def api() -> str:
    """Return the page of what ``import hpcfl`` gives, and of what its functions return."""
    public = sorted((getattr(hpcfl, name) for name in hpcfl.__all__), key=_order)
    parts = [
        "# Python API\n",
        "This page lists the public names of `hpcfl`. Options are those of the "
        "[commands](commands/index.md). [hpcfl from Python](../python.md) shows how to use them.\n",
        *(_shown(f"{found.__module__}.{found.__name__}") for found in public),
        "## Objects that functions return\n",
        *(_shown(path, level=3, internal=True) for path in RETURNED),
    ]
    return "\n".join(parts)


def bases() -> str:
    """Return the page of the classes that a user's own are made from."""
    parts = [
        "# Classes to build on\n",
        "Your own protocol, algorithm or observer is a subclass of one of these classes. "
        "[Your own protocol](../own-protocol.md) shows how to write one.\n",
        *map(_shown, BASES),
    ]
    return "\n".join(parts)


def _order(found: Any) -> tuple[bool, bool]:
    """Put functions first, then classes, then errors."""
    is_class = inspect.isclass(found)
    return is_class, is_class and issubclass(found, Exception)


def _shown(path: str, level: int = 2, internal: bool = False) -> str:
    """Return what mkdocstrings replaces by the documentation of an object.

    One that users do not import by its name is `internal`: what its fields are called counts.
    """
    yes = str(internal).lower()
    return (
        f"::: {path}\n    options:\n      heading_level: {level}\n"
        f"      show_root_full_path: {yes}\n      show_if_no_docstring: {yes}\n"
    )


class PlainRoles(griffe.Extension):
    """The roles of Sphinx in docstrings, as in ``:class:`~hpcfl.api.Run` ``, become code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(_plain, obj.docstring.value)


def _plain(role: re.Match[str]) -> str:
    short, path = role.groups()
    return code(path.rpartition(".")[2] if short else path)
