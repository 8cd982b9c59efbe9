"""A model of tables, whose columns have names, units and formats; tabulate renders them."""

from __future__ import annotations

import csv
import io
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal

from hpcfl.report import formats, jsontext
from hpcfl.report.formats import Format, Scale
from hpcfl.values import dataclass, field, replace

# Characters per line if the output is no terminal, and the least number that is assumed.
WIDTH = 119
_LEAST_WIDTH = 40
_LEAST_HEADING = 8
# A row that stands for a line between rows; only text output shows it.
RULE: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str  # for CSV and JSON, whose values are not formatted: ``device_cpu_seconds``
    title: str  # heading in all other formats
    unit: str = ""  # of the formatted values
    format: Format = formats.words
    align: Literal["left", "right"] = "right"
    scale: Scale | None = None  # chooses unit and format, for all values of the column
    per: str = ""  # suffix of the chosen unit: ``/device``
    about: str = ""  # its meaning, for the documentation

    def fitted(self, values: Iterable[Any]) -> Column:
        """Return the column with the unit and format that suit its values."""
        if self.scale is None:
            return self
        unit, format = self.scale(values)
        return replace(self, unit=unit + self.per if unit else "", format=format, scale=None)


def label(name: str, title: str | None = None, about: str = "") -> Column:
    """Return a column of words."""
    title = name.replace("_", " ") if title is None else title
    return Column(name, title, align="left", about=about)


def count(name: str, title: str, about: str = "") -> Column:
    """Return a column of whole numbers."""
    return Column(name, title, format=formats.count, about=about)


def number(name: str, title: str, about: str = "") -> Column:
    """Return a column of numbers with four digits."""
    return Column(name, title, format=formats.number, about=about)


def seconds(name: str, title: str, about: str = "") -> Column:
    """Return a column of seconds, shown in ms, in s, or as durations."""
    return Column(name, title, scale=formats.seconds_scale, about=about)


def size(name: str, title: str, per: str = "", about: str = "") -> Column:
    """Return a column of bytes, shown in B, MB, GB or TB."""
    return Column(name, title, scale=formats.bytes_scale, per=per, about=about)


@dataclass(frozen=True, repr=False)
class Table:
    """A table with its notes."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # values, or `RULE`; None and NaN stand for no value
    title: str = ""
    notes: Sequence[str] = field(default=())

    @cached_property
    def shown(self) -> list[Column]:
        """The columns with the units and formats that suit their values."""
        return [
            column.fitted([row[number] for row in self.values])
            for number, column in enumerate(self.columns)
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The formatted values, row by row."""
        return [
            [column.format(value) for column, value in zip(self.shown, row, strict=True)]
            for row in self.values
        ]

    @property
    def values(self) -> list[Sequence[Any]]:
        """The rows without the rules between them."""
        return [row for row in self.rows if row != RULE]

    def text(self, width: int | None = None) -> str:
        """Return the table as text for a terminal, with wrapped headings and notes."""
        from tabulate import SEPARATING_LINE, DataRow, Line, TableFormat, tabulate

        cells = self.cells
        headings = [
            textwrap.wrap(
                f"{column.title} {column.unit}".strip(),
                max([_LEAST_HEADING, *(len(row[number]) for row in cells)]),
                break_long_words=False,
            )
            for number, column in enumerate(self.shown)
        ]
        above = list(zip_longest(*(lines[::-1] for lines in headings), fillvalue=""))[::-1]
        filled = iter(cells)
        rows = [SEPARATING_LINE if row == RULE else next(filled) for row in self.rows]
        line, data = Line("", "-", "  ", ""), DataRow("", "  ", "")
        # Headings are rows, because tabulate's header makes columns two characters wider.
        shown = tabulate(
            [*map(list, above), SEPARATING_LINE, *rows],
            tablefmt=TableFormat(None, line, None, None, data, data, 0, None),
            colalign=[column.align for column in self.columns],
            disable_numparse=True,
        )
        title = paragraph(formats.words(self.title), "", width) if self.title else ""
        notes = "\n".join(paragraph(formats.words(note), "", width) for note in self.notes)
        return "\n\n".join(part for part in (title, shown, notes) if part)

    def _tabulated(self, rows: Sequence[Any], form: str) -> str:
        """Return rows of text under headings of title and unit in a format of tabulate."""
        from tabulate import tabulate

        return tabulate(
            rows,
            [f"{column.title}, {column.unit}".removesuffix(", ") for column in self.shown],
            tablefmt=form,
            colalign=[column.align for column in self.columns] if rows else None,
            disable_numparse=True,
        )

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, with its notes as a list."""
        shown = self._tabulated([[escaped(cell) for cell in row] for row in self.cells], "pipe")
        notes = "\n".join(f"- {escaped(note)}" for note in self.notes)
        return "\n\n".join(part for part in (escaped(self.title), shown, notes) if part)

    def latex(self) -> str:
        """Return a floating LaTeX table for the package booktabs, with its notes below it."""
        shown = self._tabulated(self.cells, "latex_booktabs")
        lines = ["% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering"]
        lines += [f"\\caption{{{_latex(formats.words(self.title))}}}", shown, "", "\\medskip"]
        notes = "\n\n".join(_latex(formats.words(note)) for note in self.notes)
        return "\n".join([*lines, f"{{\\footnotesize\\raggedright\n{notes}\\par}}", "\\end{table}"])

    def csv(self) -> str:
        """Return names and values as in RFC 4180, except that only a newline ends a line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        for row in self.values:
            writer.writerow([value if formats.has_value(value) else "" for value in row])
        return text.getvalue()

    def json(self) -> str:
        """Return a JSON list with an object for each row, and null for missing values."""
        return jsontext.dumps(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return each row as a mapping from column names to values."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.values]

    def html(self) -> str:
        """Return an HTML table, with its notes as a list."""
        import html

        notes = "".join(f"<li>{html.escape(formats.words(note))}</li>" for note in self.notes)
        shown = self._tabulated(self.cells, "html")
        return f"<p>{html.escape(self.title)}</p>\n{shown}" + (f"\n<ul>{notes}</ul>" * bool(notes))

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    values: Mapping[str, Any]  # names without a value are not shown
    title: str = ""

    @property
    def known(self) -> dict[str, str]:
        """The facts that have a value, as text."""
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


def screen_width() -> int:
    """Return the characters per line: $COLUMNS, or the terminal's, or `WIDTH`."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def paragraph(text: str, start: str = "", width: int | None = None) -> str:
    """Return a text wrapped at `width`, with a hanging indent as wide as `start`."""
    lines = textwrap.wrap(
        text,
        width or screen_width(),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    )
    return "\n".join(lines) or start.rstrip()


def escaped(text: str) -> str:
    """Return a text on one line with the special characters of Markdown escaped."""
    line = " ".join(text.split()).replace("\\", "\\\\")
    for sign in "`*_[]<>|":
        line = line.replace(sign, f"\\{sign}")
    return line.replace("&", "&amp;")


def _latex(text: str) -> str:
    from tabulate import LATEX_ESCAPE_RULES

    return "".join(LATEX_ESCAPE_RULES.get(letter, letter) for letter in text)
