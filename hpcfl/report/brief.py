"""Short representations of objects for notebooks and Python's prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfl.report import formats

WIDTH = 98  # characters per line, with room for the indent of a list
_LISTED = 8  # most items of a list that are shown


def line(kind: str, *parts: Any, end: str = "") -> str:
    """Return ``<Kind: part, part, end>`` without empty parts, truncated if it is too long."""
    told = ", ".join(formats.words(part) for part in (*parts, end) if part not in (None, ""))
    text = f"{kind}: {told}"
    return f"<{text if len(text) <= WIDTH - 2 else text[: WIDTH - 5] + '...'}>"


def lines(kind: str, items: Sequence[Any]) -> str:
    """Return the number of items, and a line for each of the first ones and the last."""
    shown = [f"  {item!r}" for item in items]
    if len(shown) > _LISTED:
        left_out = len(shown) - _LISTED + 1
        shown = [*shown[: _LISTED - 2], f"  ... {left_out} more", shown[-1]]
    return "\n".join([f"<{kind}: {len(items)}>", *shown])
