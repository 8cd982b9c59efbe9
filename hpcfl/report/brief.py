"""What objects look like in a notebook or at Python's prompt: one line, never pages of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfl.report import formats

WIDTH = 98  # letters of a line, with room for the indent of a list
_LONGEST_NAME = 48  # letters of what a line begins with, such as a protocol of one's own
_LISTED = 8  # objects of a list that are shown


def line(kind: str, *parts: Any, end: str = "") -> str:
    """Return ``<Kind: part, part, end>``, cut where it is too long.

    Parts that are empty or None are left out. The end is the name of a file.
    """
    words = [formats.words(part) for part in (*parts, end) if part not in (None, "")]
    told = ", ".join([*(_cut(word, _LONGEST_NAME) for word in words[:1]), *words[1:]])
    return f"<{_cut(f'{kind}: {told}', WIDTH - 2)}>"


def lines(kind: str, items: Sequence[Any]) -> str:
    """Return a list: how many there are, and a line for each of the first ones and the last."""
    shown = [f"  {item!r}" for item in items]
    if len(shown) > _LISTED:
        left_out = len(shown) - _LISTED + 1
        shown = [*shown[: _LISTED - 2], f"  ... {left_out} more", shown[-1]]
    return "\n".join([f"<{kind}: {len(items)}>", *shown])


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."
