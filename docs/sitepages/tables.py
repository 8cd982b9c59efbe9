"""Pages of what commands print and draw: columns of tables, lines of the footer, figures."""

from __future__ import annotations

from hpcfl.options.definition import names
from hpcfl.plots import AGAINST, KINDS, PlotOptions
from hpcfl.results.columns import COLUMNS, SHOWN
from hpcfl.results.footer import LINES, OF_TRAINING
from sitepages.markdown import code, table, words


def page() -> str:
    """Return the page."""
    columns = [
        (code(name), words(column.about), "yes" if name in SHOWN else "")
        for name, column in COLUMNS.items()
    ]
    lines = [
        (code(key), words(unit), figure and code(figure), "train" if key in OF_TRAINING else "")
        for key, (unit, figure) in LINES.items()
    ]
    figures = [
        (code(name), words(what), ", ".join(map(code, AGAINST.get(name, ()))))
        for name, what in KINDS.items()
    ]
    parts = [
        "# Tables, footer, figures\n",
        "## Columns of `hpcfl report`\n",
        "These columns are for `--columns`, CSV and JSON. Every option of `bench` and `train` is "
        "a column, too. See also [Read results](../guide.md#read-results).\n",
        table(("column", "what it is", "shown without `--columns`"), columns),
        "## Lines `HPCFL key: value`\n",
        "`bench` and `train` end with these lines, for other programs.\n",
        table(("key", "unit", "figure of the summary", "only of"), lines),
        "## Figures of `hpcfl plot`\n",
        f"All of them have {_linked(*names(PlotOptions))}.\n",
        table(("kind", "what it shows", "`--against`"), figures),
    ]
    return "\n".join(parts)


def _linked(*options: str) -> str:
    dashed = [name.replace("_", "-") for name in options]
    return ", ".join(f"[`--{name}`](commands/plot.md#plot-{name})" for name in dashed)
