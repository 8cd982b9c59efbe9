"""The page that `hpcfl report --html` writes.

It loads nothing: style and figures are within, there is no script, and its content security policy
forbids both to whatever a results file may hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpcfl import __version__
from hpcfl.pages.figures import figures
from hpcfl.report.markup import Markup, details, element, join
from hpcfl.report.table import Facts, Table, sentences
from hpcfl.results import repeating, tables
from hpcfl.results.pooling import Pool
from hpcfl.results.summary import Summary
from hpcfl.system import outputs

# More runs than these are folded.
_UNFOLDED = 3
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --note: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 84rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; display: inline; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: .4rem 0; }
details { border-top: 1px solid var(--line); }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .2rem .35rem; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { vertical-align: bottom; border-bottom-width: 2px; }
.doubtful { text-decoration: underline dotted; cursor: help; }
.number { text-align: right; } .word, .pairs th { text-align: left; }
.wide td.word { overflow-wrap: anywhere; }
.pairs { margin: 1rem 0; } .pairs th { font-weight: 400; white-space: nowrap; }
.pairs td { overflow-wrap: anywhere; }
pre { background: var(--note); padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; break-inside: avoid; }
figure svg { background: white; max-width: 100%; height: auto; display: block; }
figcaption { font-size: .9rem; max-width: 60rem; padding-top: .3rem; }
@media print {
  body { max-width: none; font-size: 10pt; } .wide { overflow: visible; }
  table { font-size: 6.5pt; } th, td { padding: .1rem .2rem; } tr { break-inside: avoid; }

  details::details-content { content-visibility: visible; block-size: auto; }
}
"""


def write(path: Path, pools: Sequence[Pool], summaries: Sequence[Summary], compared: Table) -> None:
    """Write a page of runs, repeats together; HpcflError if it cannot be written.

    Of every pool there is a summary; `compared` is the table of all of them.
    """
    outputs.write(path, outputs.PAGE, render(pools, summaries, compared))


def render(pools: Sequence[Pool], summaries: Sequence[Summary], compared: Table) -> str:
    """Return the page; see :func:`write`."""
    runs = sum(len(pool.runs) for pool in pools)
    title = f"hpcfl: {runs} run{'s' if runs != 1 else ''}"
    drawn = figures([run for pool in pools for run in pool.drawn])
    body = [
        element(
            "section",
            join([element("h2", "Summary"), compared.html()]),
        ),
    ]
    if drawn:
        body.append(element("section", join([element("h2", "Figures"), drawn])))
    is_open = len(pools) <= _UNFOLDED
    shown = [
        details(
            f"{number}. {summary.protocol}, N = {summary.devices}, d = {summary.dim}",
            _details(pool, summary),
            is_open,
        )
        for number, (pool, summary) in enumerate(zip(pools, summaries, strict=True), 1)
    ]
    body.append(element("section", join([element("h2", "Runs"), *shown])))
    return shell(title, body)


def shell(title: str, body: Sequence[Markup]) -> str:
    """Return a page of its own with a title and this body below it."""
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="generator" content="hpcfl">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Markup(_STYLE)),
    ]
    body = [element("h1", title), element("p", f"Written by hpcfl {__version__}."), *body]
    page = element(
        "html",
        join([element("head", join(head)), element("body", element("main", join(body)))]),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _details(pool: Pool, summary: Summary) -> Markup:
    first = pool.runs[0]
    parts = [
        replace(tables.facts(summary), title="Measurement").html(),
        sentences(tables.promises(first)),
        tables.phases(summary).html(),
    ]
    for number, run in enumerate(pool.runs, 1):
        which = f" (launch {number})" if len(pool.runs) > 1 else ""
        about = {"file": run.path, "run": run.run_id, "started": run.started}
        parts += [
            Facts(about | {"finished": run.finished or "not finished"}, f"Run{which}").html(),
            element("p", f"Command to measure it again{which}:"),
            element("pre", element("code", repeating.command(run))),
        ]
    parts += [facts.html() for facts in tables.details(first)[1:]]
    return join(part for part in parts if part)
