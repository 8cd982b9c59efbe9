"""Pages of what commands print and draw: columns of tables, and figures."""

from __future__ import annotations

from hpcfl.options.definition import names
from hpcfl.plots import AGAINST, KINDS, PlotOptions
from hpcfl.results.columns import COLUMNS, SHOWN
from sitepages.markdown import code, table, words


def page() -> str:
    """Return the page."""
    columns = [
        (code(name), words(column.about), "yes" if name in SHOWN else "")
        for name, column in COLUMNS.items()
    ]
    figures = [
        (code(name), words(what), ", ".join(map(code, AGAINST.get(name, ()))))
        for name, what in KINDS.items()
    ]
    parts = [
        "# Tables and figures\n",
        "## Columns of `hpcfl report`\n",
        "These columns are for `--columns`, CSV and JSON, and for the lines `HPCFL column: value` "
        "with which `bench` and `train` end. Every option of `bench` and `train` is a column, too. "
        "See also [Read results](../guide.md#read-results).\n",
        table(("column", "what it is", "shown without `--columns`"), columns),
        "## Figures of `hpcfl plot`\n",
        f"All of them have {_linked(*names(PlotOptions))}.\n",
        table(("kind", "what it shows", "`--against`"), figures),
    ]
    return "\n".join(parts)


def _linked(*options: str) -> str:
    dashed = [name.replace("_", "-") for name in options]
    return ", ".join(f"[`--{name}`](commands/plot.md#plot-{name})" for name in dashed)
