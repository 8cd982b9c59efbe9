"""``hpcfl report``: what stored runs cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpcfl.cli.options import Command, Output, given, option, options
from hpcfl.cli.terminal import alone, rendered, usable_runs, warn
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.definition import Section, asked_for, make, options_of, values_of
from hpcfl.options.report import LinkAsked, ReportOptions
from hpcfl.report.formats import counted
from hpcfl.system import outputs

if TYPE_CHECKING:
    from hpcfl.report.table import Table
    from hpcfl.results.pooling import Pool
    from hpcfl.results.summary import Summary


@click.command("report", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options(ReportOptions)
@option(
    "--no-pool",
    is_flag=True,
    section=Section.WHAT,
    help="Keep launches of one configuration, and trainings with other seeds, apart.",
)
@option(
    "--format",
    "form",
    section=Section.OUTPUT,
    type=click.Choice(["terminal", "markdown", "latex", "csv", "json"]),
    default="terminal",
    help="What to print: text, tables for a README or a paper (booktabs), or values for programs. "
    "json without --columns has all figures.",
)
@option(
    "--json",
    "as_json",
    is_flag=True,
    section=Section.OUTPUT,
    help="Print what --format json does.",
)
@option(
    "--trace",
    section=Section.OUTPUT,
    type=Output(outputs.TRACE),
    metavar="FILE",
    help="Write what ranks did when as a trace for Perfetto or Chrome instead; an older trace is "
    "replaced.",
)
@click.pass_context
@alone
def command(
    context: click.Context,
    paths: tuple[str, ...],
    no_pool: bool,
    form: str,
    as_json: bool,
    trace: Path | None,
    **typed: Any,
) -> None:
    """Show what runs cost: bytes, CPU time and wall time, phase by phase.

    PATH is a results file or a folder of them. One run is shown in full; several are shown side
    by side, with ratios to a baseline among those of the same N, d, dropout and links. Warm-up
    rounds are left out. Launches of one configuration on equal machines are pooled as repeats, and
    so is training with several seeds; training that was resumed is one run. A star marks
    seconds that are unreliable: the warnings say why.

    \b
    Examples:
      hpcfl report results/
      hpcfl report secagg.h5 sparse.h5 --baseline secagg
      hpcfl report results/ --where devices=100 \\
          --columns protocol,bytes_up_mean,bytes_up_ratio
      hpcfl report results/ --target-accuracy 0.95 --format latex > table.tex
      hpcfl report sparse.h5 --uplink-mbps 10 --downlink-mbps 50 --latency-ms 30
      hpcfl report results/ --json > summary.json
      hpcfl report results/ --format csv > phases.csv
      hpcfl report results/strong/* --speed-up ranks
      hpcfl report sparse.h5 --trace trace.json
    """
    form = _form(context, form, as_json, trace)
    asked = make(ReportOptions, given(typed))
    if asked.speed_up is not None:
        _refuse_beside_scaling(asked, trace, no_pool)
        click.echo(_scaling(paths, asked, form), nl=form != "csv")
        return
    if trace is not None:
        shown = asked_for(asked).keys() - {"where"}
        for name in sorted(shown):
            raise UsageError(
                f"--{name.replace('_', '-')} is about tables, and --trace prints none: leave it out"
            )
    told = outputs.check(trace, outputs.TRACE) if trace is not None else ""

    from hpcfl.results import columns, pooling, tables
    from hpcfl.results.reader import find
    from hpcfl.results.selection import select

    if asked.columns is not None:
        columns.choose(asked.columns)  # before files are read
    files = find(paths)
    # A file that does not tell the number of parameters is refused by asking for it.
    runs, errors = usable_runs(files, lambda run: None if run.dim else "")
    if not runs:
        raise HpcflError(f"none of the {len(files)} files could be read")
    if asked.where is not None:
        runs = select(runs, asked.where)
    if asked.target_accuracy is not None and not any(run.training for run in runs):
        raise UsageError(
            "--target-accuracy is of training, and none of the runs is of hpcfl train: leave it out"
        )
    pools = pooling.apart(runs) if no_pool else pooling.group(runs, trainings=True)
    found = pooling.summarised(pools, asked.target_accuracy, **values_of(asked, LinkAsked))
    pools, summaries = [pool for pool, _ in found], [summary for _, summary in found]
    # Refuses a baseline that there is not, whatever is printed.
    compared = tables.comparison(
        summaries,
        asked.baseline,
        pooling.kept_apart(pools),
        asked.columns,
        numbered=form not in ("csv", "json"),  # which have no notes
    )
    for run in runs:
        if not run.validated.all():
            wrong = counted(int((~run.validated).sum()), "round")
            warn(f"{run.path} has {wrong} that failed validation")

    if trace is not None:
        from hpcfl.results.trace import write as write_trace

        count = write_trace(trace, runs)
        click.echo(f"Trace of {count} events: {told}")
    elif asked.columns is not None or len(summaries) > 1:
        click.echo(_side_by_side(compared, summaries, asked, form), nl=form != "csv")
    else:
        click.echo(_one(pools[0], summaries[0], form), nl=form != "csv")
    if errors:
        raise SystemExit(1)


def _scaling(paths: Sequence[str], asked: ReportOptions, form: str) -> str:
    """Return speed-up and efficiency of runs in a format."""
    from hpcfl.results.reader import find
    from hpcfl.results.scaling import lacking, study
    from hpcfl.results.scaling_table import table

    assert asked.speed_up is not None
    against, files = asked.speed_up, find(paths)
    runs, _ = usable_runs(files, lambda run: lacking(run, against), asked.where)
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be shown")
    return rendered(table(study(runs, against)), form)


def _refuse_beside_scaling(asked: ReportOptions, written: Path | None, no_pool: bool) -> None:
    """Refuse what has no meaning for a table of scaling."""
    for name in ("columns", "baseline", "target_accuracy", *options_of(LinkAsked)):
        if getattr(asked, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning for --speed-up")
    if written is not None or no_pool:
        raise UsageError("--trace and --no-pool have no meaning for --speed-up")


def _side_by_side(
    compared: Table, summaries: Sequence[Summary], asked: ReportOptions, form: str
) -> str:
    """Return several runs in a format, or one with columns of its own."""
    from hpcfl.results import tables

    if asked.columns is None and form == "json":
        return tables.to_json(summaries, asked.baseline)
    return rendered(compared, form)


def _one(pool: Pool, summary: Summary, form: str) -> str:
    """Return one run in a format."""
    from hpcfl.results import ranktimes, tables

    if form == "json":
        return tables.to_json([summary])
    if form == "csv":
        return tables.phases(summary).csv()
    if form == "markdown":
        return f"{tables.facts(summary).markdown()}\n\n{tables.phases(summary).markdown()}"
    if form == "latex":
        return tables.phases(summary).latex()
    parts = [facts.text() for facts in tables.details(pool.runs[0])]
    parts.append(tables.render_run(summary))
    spent = ranktimes.shares(pool.run)
    parts += [spent.text()] if spent is not None else []
    parts.append(tables.render_promises(pool.runs[0]))
    return "\n\n".join(part for part in parts if part)


def _form(context: click.Context, form: str, as_json: bool, written: Path | None) -> str:
    """Return the format to print; refuse two that do not go together."""
    asked = context.get_parameter_source("form") is ParameterSource.COMMANDLINE
    if as_json and asked and form != "json":
        raise UsageError(f"--json and --format {form} do not go together: choose one")
    if written is not None and (as_json or asked):
        raise UsageError(
            "--trace writes a file and prints no tables: leave --format and --json out"
        )
    return "json" if as_json else form
