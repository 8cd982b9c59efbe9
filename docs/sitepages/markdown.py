"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns in which no row has anything are left out."""
    body = [[cell(text) for text in row] for row in rows]
    kept = [at for at in range(len(head)) if any(row[at] for row in body)]
    lines = [[head[at] for at in kept], ["---"] * len(kept)]
    lines += [[row[at] for at in kept] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return a text as it stands in a cell of a table: on one line, and no bar ends it."""
    return " ".join(text.replace("|", "\\|").split())


def words(text: str) -> str:
    """Return a plain text so that no sign in it is taken for markup.

    What is in quotes as code, in one or two backticks, becomes code.
    """
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(
        code(part.strip("`")) if part.startswith("`") else re.sub(r"([\\*_\[\]<>#])", r"\\\1", part)
        for part in parts
    )


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def block(text: str, language: str = "text") -> str:
    """Return lines of code or output as they are."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def anchor(name: str) -> str:
    """Return a place that links can lead to, as in ``#name``."""
    return f'<a id="{name}"></a>'
