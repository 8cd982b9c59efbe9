"""Pieces of HTML. Whatever they are given as text is escaped; only `Markup` is taken as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: object) -> Markup:
    """Return something as HTML: as it is if it is `Markup`, else escaped.

    Control characters, which no HTML may hold, become the replacement character.
    """
    if isinstance(content, Markup):
        return content
    clean = "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for letter in str(content)
    )
    return Markup(html.escape(clean))


def element(name: str, content: object = "", /, **attributes: object) -> Markup:
    """Return an element with its content; ``class_`` stands for the attribute ``class``."""
    listed = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{listed}>{text(content)}</{name}>")


def join(parts: Iterable[object], between: str = "\n") -> Markup:
    """Return parts one after the other."""
    return Markup(between.join(text(part) for part in parts))
