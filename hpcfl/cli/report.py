"""Commands that evaluate stored runs: `hpcfl report`, `hpcfl compare` and `hpcfl plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcfl.cli.options import PLACE, Command, given, options
from hpcfl.cli.terminal import alone, json_option, show, usable_runs, warn
from hpcfl.errors import UsageError
from hpcfl.options.definition import make, values_of
from hpcfl.options.report import CompareOptions, LinkAsked, ReportOptions
from hpcfl.plots import KINDS, PlotOptions, chosen
from hpcfl.report.formats import counted

if TYPE_CHECKING:
    from hpcfl.report.table import Table
    from hpcfl.results.pooling import Pool
    from hpcfl.results.reader import Run
    from hpcfl.results.summary import Summary

SLOWER_STATUS = 3


@click.command("report", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options(ReportOptions)
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "markdown", "latex", "csv", "json"]),
    default="terminal",
    help="What to print: text, tables for a README or a paper (booktabs), or values for programs. "
    "json without --columns has all figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what --format json does.")
@alone
def report(paths: tuple[str, ...], form: str, as_json: bool, **typed: Any) -> None:
    """Show the costs of runs: bytes, CPU time and wall time, phase by phase.

    PATH is a results file or a folder of them. One run is shown in full. Several runs are shown
    side by side, with ratios to a baseline of the same N, d, dropout and links. Warm-up rounds are
    left out. Launches of one configuration on equal machines are pooled, and so are trainings that
    differ only in their seed; a resumed training is one run. Warnings name the rows with
    unreliable timings and give the reason.

    \b
    Examples:
      hpcfl report results/
      hpcfl report secagg.h5 sparse.h5 --baseline secagg
      hpcfl report results/ --where devices=100 \\
          --columns protocol,bytes_up_mean,bytes_up_ratio
      hpcfl report results/strong/* --speed-up ranks
    """
    from hpcfl.results import columns, scaling

    asked, form = make(ReportOptions, given(typed)), "json" if as_json else form
    if asked.columns is not None:
        columns.choose(asked.columns)  # before files are read

    def objection(run: Run) -> str | None:
        if asked.speed_up is not None:
            return scaling.lacking(run, asked.speed_up)
        return None if run.config.get("dim") else "does not record the option dim"

    runs, complete = usable_runs(paths, objection, asked.where)
    if asked.speed_up is not None:
        text = _rendered(scaling.table(runs, asked.speed_up), form)
    else:
        text = _costs(runs, asked, form)
    click.echo(text, nl=form != "csv")
    if not complete:
        raise SystemExit(1)


def _costs(runs: Sequence[Run], asked: ReportOptions, form: str) -> str:
    """Return the costs of one run, or of several runs side by side, in a format."""
    from hpcfl.report import jsontext
    from hpcfl.results import pooling, tables
    from hpcfl.results.summary import beside

    if asked.target_accuracy is not None and not any(run.training for run in runs):
        raise UsageError(
            "--target-accuracy needs a run of hpcfl train, and there is none: leave it out"
        )
    pools, link = pooling.group(runs, trainings=True), values_of(asked, LinkAsked)
    found = pooling.summarised(pools, asked.target_accuracy, **link)
    pools, summaries = [pool for pool, _ in found], [summary for _, summary in found]
    # Called for every format, because it refuses an unknown baseline.
    compared = tables.comparison(
        summaries,
        asked.baseline,
        asked.columns,
        numbered=form not in ("csv", "json"),  # which have no notes
    )
    for run in runs:
        if not run.validated.all():
            wrong = counted(int((~run.validated).sum()), "round")
            warn(f"{run.path} has {wrong} that failed validation")
        if run.config.get("population") and any(value is not None for value in link.values()):
            warn(f"{run.path}: its modelled seconds are those of its population's links")
    if form == "json" and asked.columns is None:
        shown = beside(summaries, asked.baseline) if len(summaries) > 1 else summaries
        return jsontext.dumps({"runs": [summary.as_dict() for summary in shown]})
    if len(summaries) > 1 or asked.columns is not None:
        return _rendered(compared, form)
    return _one(pools[0], summaries[0], form)


def _one(pool: Pool, summary: Summary, form: str) -> str:
    """Return the full report of one run."""
    from hpcfl.results import ranktimes, tables

    if form != "terminal":
        return _rendered(tables.phases(summary), form)
    parts = [facts.text() for facts in tables.details(pool.runs[0])]
    parts.append(tables.render_run(summary))
    spent = ranktimes.shares(pool.run), ranktimes.by_rank(pool.run)
    parts += [table.text() for table in spent if table is not None]
    parts.append(tables.render_promises(pool.runs[0]))
    return "\n\n".join(part for part in parts if part)


def _rendered(table: Table, form: str) -> str:
    """Return a table in a format."""
    return str(getattr(table, "text" if form == "terminal" else form)())


def _share(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the share that 5% or 0.05 means; refuse 5, which could mean 5 % or five times."""
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < (float("inf") if value.endswith("%") else 1):
        raise click.BadParameter(f"{value!r} is not a share like 5% or 0.05", context, param)
    return share


@click.command("compare", cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options(CompareOptions)
@click.option(
    "--fail-if-slower",
    callback=_share,
    metavar="PERCENT",
    help="Exit with status 3 if B is slower (or larger) than A by more than this share: if the "
    "whole interval of the ratio lies above it.",
)
@json_option
@alone
def compare(a: str, b: str, fail_if_slower: float | None, as_json: bool, **typed: Any) -> None:
    """Compare the measured rounds of B with those of A.

    A and B are results files, or folders with several launches of one configuration, which are
    pooled. Medians, their difference and their ratio have rank-based intervals, and a rank test
    shows whether they differ.

    \b
    Examples:
      hpcfl compare main/ branch/ --fail-if-slower 5%
      hpcfl compare secagg.h5 sparse.h5 --metric bytes_up
    """
    from hpcfl import api

    asked = make(CompareOptions, given(typed))
    found = api.compare(api.load_many(a), api.load_many(b), **vars(asked))
    slower = fail_if_slower is not None and found.exceeds(fail_if_slower)
    limit = {} if fail_if_slower is None else {"limit": fail_if_slower, "slower_than_limit": slower}
    show(as_json, lambda: found.as_dict() | limit, found.table().text)
    if slower and fail_if_slower is not None:
        click.echo(f"B is beyond the limit of {100 * fail_if_slower:g} %", err=True)
        raise SystemExit(SLOWER_STATUS)


@click.command("plot", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--kind",
    metavar="KIND",
    type=click.Choice([*KINDS]),
    required=True,
    help="; ".join(f"{name}: {what}" for name, what in KINDS.items()) + ".",
)
@click.option(
    "--output",
    type=PLACE,
    help="File of the figure: .png, .svg or .pdf; an older one is replaced.  [default: KIND.png]",
)
@options(PlotOptions)
@alone
def plot(paths: tuple[str, ...], kind: str, output: Path | None, **typed: Any) -> None:
    """Draw a figure of results.

    PATH is a results file or a folder of them. Launches of one configuration on equal machines are
    pooled. Trainings that differ only in their seed are drawn as their mean, and a resumed training
    as one run. A protocol has the same colour and marker in all figures, and a phase the same
    colour.

    \b
    Examples:
      hpcfl plot results/ --kind accuracy --against bytes --output accuracy.pdf
      hpcfl plot results/ --kind scaling --against dim \\
          --where 'protocol=secagg|sparse,devices=100'
      hpcfl plot sparse.h5 --kind timeline --round 3
    """
    from hpcfl.plots import style
    from hpcfl.system import outputs

    path = output or Path(f"{kind}.png")
    told = outputs.check(path, outputs.FIGURE)
    drawing = chosen(kind, given(typed))
    runs, complete = usable_runs(paths, drawing.lacking, drawing.asked.where)
    style.save(drawing.draw(runs), path)
    click.echo(f"Figure: {told}")
    if not complete:
        raise SystemExit(1)
