"""Pieces of HTML. Whatever they are given as text is escaped; only `Markup` is taken as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from hpcfl.results.export import Table


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


def table(content: Table, caption: str) -> Markup:
    """Return a table whose header cells, of columns and of rows, are marked as such.

    It scrolls by itself where it is wider than the page.
    """
    head = [
        element("th", cell, scope="col", class_="word" if column < content.words else "number")
        for column, cell in enumerate(content.header)
    ]
    body = []
    for row in content.rows:
        cells = [element("th", row[0], scope="row", class_="word")]
        cells += [
            element("td", cell, class_="word" if column < content.words else "number")
            for column, cell in enumerate(row[1:], 1)
        ]
        body.append(element("tr", join(cells, "")))
    parts = [
        element("caption", caption),
        element("thead", element("tr", join(head, ""))),
        element("tbody", join(body)),
    ]
    # Can be reached, and so scrolled, with the keyboard.
    return element(
        *("div", element("table", join(parts))),
        class_="wide",
        role="region",
        aria_label=caption,
        tabindex=0,
    )


def pairs(values: Mapping[str, object], caption: str) -> Markup:
    """Return a table of names and values."""
    rows = [
        element("tr", join([element("th", name, scope="row"), element("td", value)], ""))
        for name, value in values.items()
    ]
    body = element("tbody", join(rows))
    return element("table", join([element("caption", caption), body]), class_="pairs")


def sentences(found: Sequence[str]) -> Markup:
    """Return a list; nothing for none."""
    if not found:
        return Markup("")
    return element("ul", join(element("li", sentence) for sentence in found))


def details(summary: str, content: object, is_open: bool) -> Markup:
    """Return content under a heading that can be folded."""
    opened = {"open": "open"} if is_open else {}
    heading = element("summary", element("h3", summary))
    return element("details", join([heading, content]), **opened)
