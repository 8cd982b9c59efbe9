"""``hpcfl report``: what stored runs cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcfl.cli.options import given, options
from hpcfl.cli.terminal import alone, usable_runs
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.definition import make
from hpcfl.options.report import ReportOptions


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--baseline",
    metavar="NAME",
    help="Run to compare with: a file's name, or a protocol's.  [default: the first secagg run, "
    "else the first run]",
)
@options(ReportOptions)
@click.option("--no-pool", is_flag=True, help="Keep launches of one configuration apart.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "markdown", "csv", "json"]),
    default="terminal",
    help="What to print: text, tables for a README, a row for each run and phase, or all figures.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page with tables, figures and everything recorded instead; overwritten.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what ranks did when as a trace for Perfetto or Chrome instead; overwritten.",
)
@click.pass_context
@alone
def command(
    context: click.Context,
    paths: tuple[str, ...],
    baseline: str | None,
    no_pool: bool,
    form: str,
    as_json: bool,
    page: Path | None,
    trace: Path | None,
    **typed: Any,
) -> None:
    """Show what runs cost: bytes, CPU time and wall time, phase by phase.

    PATH is a results file or a folder of them. One run is shown in full; several are shown side
    by side, with ratios to a baseline. Warm-up rounds are left out. Launches of one
    configuration on equal machines are pooled as repeats.

    \b
    Examples:
      hpcfl report results/
      hpcfl report secagg.h5 sparse.h5 --baseline secagg
      hpcfl report sparse.h5 --uplink-mbps 10 --downlink-mbps 50 --latency-ms 30
      hpcfl report results/ --json > summary.json
      hpcfl report results/ --format csv > phases.csv
      hpcfl report results/ --html report.html
      hpcfl report sparse.h5 --trace trace.json
    """
    form = _form(context, form, as_json, page or trace)
    link = vars(make(ReportOptions, given(typed)))

    from hpcfl.results import pooling, ranktimes, tables
    from hpcfl.results.reader import find
    from hpcfl.results.summary import choose_baseline

    files = find(paths)
    # A file that does not tell the number of parameters is refused by asking for it.
    runs, errors = usable_runs(files, lambda run: None if run.dim else "")
    if not runs:
        raise HpcflError(f"none of the {len(files)} files could be read")
    pools = pooling.apart(runs) if no_pool else pooling.group(runs)
    summaries = [pooling.summarise(pool, pool.runs[0].link(**link)) for pool in pools]
    if len({summary.link for summary in summaries}) > 1:
        raise UsageError(
            "the runs were made for different links, so their modelled times cannot be compared: "
            "give --uplink-mbps, --downlink-mbps and --latency-ms"
        )
    chosen = choose_baseline(summaries, baseline)
    for run in runs:
        if not run.validated.all():
            wrong = int((~run.validated).sum())
            click.echo(f"warning: {run.path} has {wrong} rounds that failed validation", err=True)

    if trace is not None:
        from hpcfl.results.trace import write as write_trace

        click.echo(f"Trace: {trace} ({write_trace(trace, runs)} events)")
    if page is not None:
        from hpcfl.pages.page import write

        write(page, pools, summaries, chosen)
        click.echo(f"Page: {page}")
    elif trace is not None:
        pass
    elif form == "json":
        click.echo(tables.to_json(summaries, chosen))
    elif form == "csv":
        click.echo(tables.every_figure(summaries).csv(), nl=False)
    elif len(summaries) > 1:
        compared = tables.comparison(summaries, chosen, pooling.kept_apart(pools))
        click.echo(compared.markdown() if form == "markdown" else compared.text())
    elif form == "markdown":
        (summary,) = summaries
        click.echo(f"{tables.facts(summary).markdown()}\n\n{tables.phases(summary).markdown()}")
    else:
        parts = [facts.text() for facts in tables.details(runs[0])]
        parts.append(tables.render_run(summaries[0]))
        spent = ranktimes.shares(pools[0].run)
        parts += [spent.text()] if spent is not None else []
        parts.append(tables.render_promises(runs[0]))
        click.echo("\n\n".join(part for part in parts if part))
    if errors:
        raise SystemExit(1)


def _form(context: click.Context, form: str, as_json: bool, written: Path | None) -> str:
    """Return the format to print; refuse two that do not go together."""
    asked = context.get_parameter_source("form") is ParameterSource.COMMANDLINE
    if as_json and asked and form != "json":
        raise UsageError(f"--json and --format {form} do not go together: choose one")
    if written is not None and (as_json or asked):
        raise UsageError(
            "--html and --trace write a file and print no tables: leave --format and --json out"
        )
    return "json" if as_json else form
