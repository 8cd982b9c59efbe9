"""One model of a table: columns with name, unit and format, rendered in six ways."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, zip_longest
from typing import Any, Literal

from hpcfl.report import formats, jsontext
from hpcfl.report.formats import Format, Scale, counted
from hpcfl.report.markup import Markup, element, join

# Letters in a line where output is no terminal, and the fewest that are made use of.
WIDTH = 119
_LEAST_WIDTH = 40
_MOST_ROWS = 12  # that Python's prompt shows of a table
# A row that is a line between rows; only text has it.
RULE: tuple[Any, ...] = ()

# Words are not wrapped to less than so many letters.
_NARROWEST = 12
# Words of up to so many letters are not cut.
_LONG_WORD = 20

# What a note is about: "row 3: " or "warning: ".
_LABEL = re.compile(r"(row \d+|warning): ")

# What Markdown would read as its own; "_" only at the edge of a word.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str  # in CSV and JSON, whose values are not formatted: ``device_cpu_seconds``
    title: str  # in the heading of the other renderings
    unit: str = ""  # of the formatted values
    format: Format = formats.words
    align: Literal["left", "right"] = "right"
    scale: Scale | None = None  # chooses unit and format, for all values of the column
    per: str = ""  # what follows the unit that is chosen: ``/device``
    part: str = ""  # columns of one part stay together where a table is folded

    def fitted(self, values: Iterable[Any]) -> Column:
        """Return the column with the unit and format that suit its values."""
        if self.scale is None:
            return self
        unit, format = self.scale(values)
        unit = f"{unit}{self.per}" if unit else self.per.replace("/", "per ")
        return replace(self, unit=unit, format=format, scale=None)

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


def label(name: str, title: str | None = None) -> Column:
    """Return a column of words."""
    return Column(name, name.replace("_", " ") if title is None else title, align="left")


def seconds(name: str, title: str, part: str = "") -> Column:
    """Return a column of seconds, shown in ms, in s, or as durations."""
    return Column(name, title, scale=formats.seconds_scale, part=part)


def size(name: str, title: str, per: str = "", part: str = "") -> Column:
    """Return a column of bytes, shown in B, MB, GB or TB."""
    return Column(name, title, scale=formats.bytes_scale, per=per, part=part)


@dataclass(frozen=True, repr=False)
class Table:
    """A table, and what has to be said with it."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # values, or `RULE`; None and NaN stand for no value
    title: str = ""
    notes: Sequence[str] = field(default=())
    keys: int = 1  # so many columns are repeated where a table is folded to fit a width
    # Why values are doubtful, by their row, counted without rules, and the name of their column.
    doubts: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @cached_property
    def shown(self) -> list[Column]:
        """The columns with the units and formats that suit their values."""
        return [
            column.fitted([row[number] for row in self.values])
            for number, column in enumerate(self.columns)
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The formatted values, row by row; a doubtful one begins with a star."""
        return [
            [
                f"{'*' if self._doubtful(number, column, value) else ''}{column.format(value)}"
                for column, value in zip(self.shown, row, strict=True)
            ]
            for number, row in enumerate(self.values)
        ]

    def _doubtful(self, row: int, column: Column, value: Any) -> bool:
        return (row, column.name) in self.doubts and formats.has_value(value)

    @property
    def values(self) -> list[Sequence[Any]]:
        """The rows without the rules between them."""
        return [row for row in self.rows if row != RULE]

    def text(self, width: int | None = None) -> str:
        """Return it for a terminal: aligned, with headings on one line if there is room.

        Where the table is wider than `width` otherwise, the terminal's by default, headings are
        wrapped, then columns are one space apart, not two, and then words are wrapped within their
        cells. If that is not enough, it is folded: columns that have no room follow below, after
        the first `keys` columns again.
        """
        width = width or screen_width()
        cells = self.cells
        headings = [f"{column.title} {column.unit}".strip() for column in self.shown]
        least = [
            max(len(part) for part in (*heading.split(), *(row[number] for row in cells), " "))
            for number, heading in enumerate(headings)
        ]
        narrowest = [
            _narrowest([row[number] for row in cells], few) if column.align == "left" else few
            for number, (column, few) in enumerate(zip(self.shown, least, strict=True))
        ]
        parts = [
            self._part(columns, cells, headings, least, narrowest, width)
            for columns in self._folded(narrowest, width)
        ]
        # Both can quote a results file, as cells can.
        title = paragraph(formats.words(self.title), "", width) if self.title else ""
        notes = "\n".join(_note(formats.words(note), width) for note in self.notes)
        return "\n\n".join(part for part in (title, *parts, notes) if part)

    def _folded(self, narrowest: Sequence[int], width: int) -> list[list[int]]:
        """Return which columns are side by side, in one part of the table or in several."""
        keys = [*range(min(self.keys, len(narrowest)))]

        def fits(columns: Iterable[int]) -> bool:
            return sum(narrowest[n] + 1 for n in columns) - 1 <= width

        together = [
            [number for number, _ in columns]
            for _, columns in groupby(
                enumerate(self.columns[len(keys) :], len(keys)),
                lambda numbered: numbered[1].part or numbered[0],
            )
        ]
        parts = [keys]
        for columns in together:
            # What has no room even in a part of its own is divided.
            for piece in [columns] if fits([*keys, *columns]) else [[n] for n in columns]:
                if not fits([*parts[-1], *piece]) and parts[-1] != keys:
                    parts.append(keys)
                parts[-1] = [*parts[-1], *piece]
        return parts

    def _part(
        self,
        columns: Sequence[int],
        cells: Sequence[Sequence[str]],
        headings: Sequence[str],
        least: Sequence[int],
        narrowest: Sequence[int],
        width: int,
    ) -> str:
        """Return some columns as text."""
        from tabulate import SEPARATING_LINE, DataRow, Line, TableFormat, tabulate

        few = [least[n] for n in columns]
        above = [headings[n] for n in columns]
        aligned = [self.columns[n].align for n in columns]
        gap = "  " if sum(few) + 2 * (len(few) - 1) <= width else " "
        narrow = [narrowest[n] for n in columns]
        widths = _narrowed(above, few, narrow, width - len(gap) * (len(few) - 1))
        # Rows, not tabulate's header: that makes a column two wider than its heading.
        rows = [*_lines(above, widths, end=True), SEPARATING_LINE]
        filled = iter(cells)
        for row in self.rows:
            if row == RULE:
                rows.append(SEPARATING_LINE)
            else:
                cell = next(filled)
                rows += _lines([cell[n] for n in columns], widths)
        line, data = Line("", "-", gap, ""), DataRow("", gap, "")
        return tabulate(
            rows,
            tablefmt=TableFormat(None, line, None, None, data, data, 0, None),
            colalign=aligned,
            disable_numparse=True,
        )

    def markdown(self) -> str:
        """Return it in GitHub's Markdown; notes are a list. What Markdown would read is escaped."""
        from tabulate import tabulate

        shown = tabulate(
            [[escaped(cell) for cell in row] for row in self.cells],
            [escaped(column.heading) for column in self.shown],
            tablefmt="pipe",
            colalign=[column.align for column in self.columns],
            disable_numparse=True,
        )
        return "\n\n".join(
            part for part in (escaped(self.title), shown, bullets(self.notes)) if part
        )

    def latex(self) -> str:
        """Return a floating table in LaTeX, for the package booktabs; notes are below it."""
        from tabulate import SEPARATING_LINE, tabulate

        cells = iter(self.cells)
        shown = tabulate(
            [SEPARATING_LINE if row == RULE else next(cells) for row in self.rows],
            [column.heading for column in self.shown],
            tablefmt="latex_booktabs",
            colalign=[column.align for column in self.columns],
            disable_numparse=True,
        )
        title = formats.words(self.title)
        # As paragraphs: after a line's end TeX would read a star or a bracket as its own.
        notes = "\n\n".join(_latex(formats.words(note)) for note in self.notes)
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                "\\begin{table}",
                *([f"\\caption{{{_latex(title)}}}"] if title else []),
                "\\centering",
                shown,
                *(
                    ["", "\\medskip", f"{{\\footnotesize\\raggedright\n{notes}\\par}}"]
                    if notes
                    else []
                ),
                "\\end{table}",
            ]
        )

    def csv(self) -> str:
        """Return names and values after RFC 4180, lines ended by a newline alone."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        for row in self.values:
            writer.writerow([value if formats.has_value(value) else "" for value in row])
        return text.getvalue()

    def json(self) -> str:
        """Return a list of objects, one for each row; what has no value is null."""
        return jsontext.dumps(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values by the names of their columns."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.values]

    def html(self) -> Markup:
        """Return an HTML table in a region that scrolls by itself where it is too wide."""
        kinds = ["word" if column.align == "left" else "number" for column in self.columns]
        head = [
            element("th", column.heading, scope="col", class_=kind)
            for column, kind in zip(self.shown, kinds, strict=True)
        ]
        body = []
        for number, row in enumerate(self.cells):
            cells = []
            for place, (column, kind, cell) in enumerate(
                zip(self.columns, kinds, row, strict=True)
            ):
                what = {"class_": kind}
                if (number, column.name) in self.doubts:
                    what = {
                        "class_": f"{kind} doubtful",
                        "title": self.doubts[number, column.name],
                    }
                cells.append(
                    element("td", cell, **what)
                    if place
                    else element("th", cell, scope="row", **what)
                )
            body.append(element("tr", join(cells, "")))
        parts = [
            element("caption", self.title),
            element("thead", element("tr", join(head, ""))),
            element("tbody", join(body)),
        ]
        shown = element(
            *("div", element("table", join(parts))),
            class_="wide",
            role="region",
            aria_label=self.title,
            tabindex=0,  # can be reached, and so scrolled, with the keyboard
        )
        return join(part for part in (shown, sentences(self.notes)) if part)

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        """Return the text; of a long table its first and last rows."""
        values = self.values
        if len(values) <= _MOST_ROWS:
            return self.text()
        first, last = _MOST_ROWS - 5, len(values) - 5
        doubts = {
            (row if row < first else row - last + first, name): why
            for (row, name), why in self.doubts.items()
            if not first <= row < last
        }
        rows = [*values[:first], RULE, *values[last:]]
        note = f"left out in the middle: {counted(last - first, 'row')}; print(table) shows all"
        return replace(self, rows=rows, doubts=doubts, notes=[note, *self.notes[:3]]).text()


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    values: Mapping[str, Any]  # what has no value is left out
    title: str = ""

    @property
    def known(self) -> dict[str, str]:
        """Those with a value, in words."""
        return {
            name: formats.words(value)
            for name, value in self.values.items()
            if formats.has_value(value)
        }

    def text(self, width: int | None = None) -> str:
        """Return two columns, under the title if there is one; long values continue below."""
        known = self.known
        indent = "  " if self.title else ""
        column = max(map(len, known), default=0) + 2
        lines = [self.title] if self.title else []
        for name, value in known.items():
            lines.append(paragraph(value, f"{indent}{name:<{column}}", width))
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return a list."""
        return bullets([f"{name}: {value}" for name, value in self.known.items()])


def screen_width() -> int:
    """Return how many letters a line may have: $COLUMNS, or what the terminal has, or `WIDTH`."""
    import shutil

    return max(_LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def paragraph(text: str, start: str = "", width: int | None = None) -> str:
    """Return a text in lines of at most `width`, all below where it begins after `start`."""
    width = width or screen_width()
    indent = " " * len(start)
    lines = textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )
    return "\n".join(lines) or start.rstrip()


def _note(note: str, width: int) -> str:
    """Return a note as a paragraph, below what follows its label if it has one."""
    found = _LABEL.match(note)
    start = found.group() if found else ""
    return paragraph(note.removeprefix(start), start, width)


def bullets(notes: Sequence[str]) -> str:
    """Return sentences as a list in Markdown, escaped."""
    return "\n".join(f"- {escaped(note)}" for note in notes)


def sentences(notes: Sequence[str]) -> Markup:
    """Return sentences as a list in HTML; nothing for none."""
    return element("ul", join(element("li", note) for note in notes)) if notes else Markup("")


def escaped(text: str) -> str:
    """Return a text on one line of Markdown that shows as it is."""
    plain = _MARKDOWN.sub(lambda found: "\\" + found.group(), " ".join(text.split()))
    return plain.replace("&", "&amp;")


def _narrowed(
    headings: Sequence[str], least: Sequence[int], narrowest: Sequence[int], room: int
) -> list[int]:
    """Return the columns' widths: headings are wrapped until all have room, then words."""
    widths = [max(len(heading), few) for heading, few in zip(headings, least, strict=True)]
    for floor in (least, narrowest):
        while sum(widths) > room and widths != [*floor]:
            wide = [n for n, few in enumerate(floor) if widths[n] > few]
            widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths


def _narrowest(cells: Sequence[str], least: int) -> int:
    """Return to how few letters a column of words may be wrapped: no word that is short is cut."""
    words = (len(word) for cell in cells for word in cell.split())
    return min(least, max(_NARROWEST, min(_LONG_WORD, max(words, default=0))))


def _latex(text: str) -> str:
    from tabulate import LATEX_ESCAPE_RULES

    return "".join(LATEX_ESCAPE_RULES.get(letter, letter) for letter in text)


def _lines(cells: Iterable[str], widths: Sequence[int], end: bool = False) -> list[Any]:
    """Return a row as rows, each cell wrapped to its width, from the first line or to the last."""
    wrapped = [
        textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)
    ]
    step = -1 if end else 1
    lines = zip_longest(*(lines[::step] for lines in wrapped), fillvalue="")
    return list(map(list, lines))[::step]
