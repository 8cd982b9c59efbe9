"""Runs chosen by what they are: ``protocol=sparse,devices=100``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import nearest
from hpcfl.results.reader import Run


def select(runs: Sequence[Run], text: str) -> list[Run]:
    """Return the runs with all of the values that a text like ``protocol=sparse,alpha=0.1`` names.

    The names are ``protocol``, ``devices``, ``status`` and all options that the files record. A
    UsageError says that a condition has no ``=``, that no run records such an option, or that none
    is left.
    """
    wanted = [_condition(part) for part in text.split(",")]
    known = {name for run in runs for name in _facts(run)}
    for name, _ in wanted:
        if name not in known:
            raise UsageError(f"--where has {name!r}, which no run records{nearest(name, known)}")
    found = [
        run for run in runs if all(_is(_facts(run).get(name), value) for name, value in wanted)
    ]
    if runs and not found:
        raise UsageError(f"--where {text} leaves none of {len(runs)} runs")
    return found


def _condition(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--where has {part!r}; give NAME=VALUE, such as protocol=sparse")
    return name.strip().replace("-", "_"), value.strip()


def _facts(run: Run) -> dict[str, Any]:
    return run.config | {"protocol": run.protocol, "devices": run.devices, "status": run.status}


def _is(value: Any, text: str) -> bool:
    """Return whether a value is what a text says; numbers as numbers, so that 0.10 is 0.1."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str("none" if value is None else value).lower() == text.lower()
