"""``hpcfl report``: what stored runs cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcfl.cli.options import PLACE, Command, given, option, options
from hpcfl.cli.terminal import alone, json_option, usable_runs, warn
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.definition import make, values_of
from hpcfl.options.report import LinkAsked, ReportOptions
from hpcfl.report.formats import counted

if TYPE_CHECKING:
    from hpcfl.report.table import Table
    from hpcfl.results.pooling import Pool
    from hpcfl.results.reader import Run
    from hpcfl.results.summary import Summary


@click.command("report", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options(ReportOptions)
@option(
    "--format",
    "form",
    type=click.Choice(["terminal", "markdown", "latex", "csv", "json"]),
    default="terminal",
    help="What to print: text, tables for a README or a paper (booktabs), or values for programs. "
    "json without --columns has all figures.",
)
@json_option("Print what --format json does.")
@option(
    "--trace",
    type=PLACE,
    metavar="FILE",
    help="Write what ranks did when as a trace for Perfetto or Chrome instead; an older trace is "
    "replaced.",
)
@alone
def command(
    paths: tuple[str, ...], form: str, as_json: bool, trace: Path | None, **typed: Any
) -> None:
    """Show what runs cost: bytes, CPU time and wall time, phase by phase.

    PATH is a results file or a folder of them. One run is shown in full; several are shown side
    by side, with ratios to a baseline among those of the same N, d, dropout and links. Warm-up
    rounds are left out. Launches of one configuration on equal machines are pooled as repeats, and
    so is training with several seeds; training that was resumed is one run. Warnings name the
    rows whose seconds are unreliable, and say why.

    \b
    Examples:
      hpcfl report results/
      hpcfl report secagg.h5 sparse.h5 --baseline secagg
      hpcfl report results/ --where devices=100 \\
          --columns protocol,bytes_up_mean,bytes_up_ratio
      hpcfl report results/ --target-accuracy 0.95 --format latex > table.tex
      hpcfl report sparse.h5 --uplink-mbps 10 --latency-ms 30 --json
      hpcfl report results/strong/* --speed-up ranks
      hpcfl report sparse.h5 --trace trace.json
    """
    from hpcfl.results import columns

    asked, form = make(ReportOptions, given(typed)), "json" if as_json else form
    if asked.columns is not None:
        columns.choose(asked.columns)  # before files are read
    if trace is not None:
        _write_trace(paths, asked, trace)
    elif asked.speed_up is not None:
        click.echo(_scaling(paths, asked, form), nl=form != "csv")
    else:
        _show(paths, asked, form)


def _read(paths: Sequence[str], asked: ReportOptions) -> tuple[list[Run], bool]:
    """Return the runs that are asked for, and whether all files could be read."""
    from hpcfl.results.reader import find
    from hpcfl.results.selection import select

    files = find(paths)
    # A file that does not tell the number of parameters is refused by asking for it.
    runs, errors = usable_runs(files, lambda run: None if run.dim else "")
    if not runs:
        raise HpcflError(f"none of the {len(files)} files could be read")
    return (select(runs, asked.where) if asked.where is not None else runs), not errors


def _write_trace(paths: Sequence[str], asked: ReportOptions, path: Path) -> None:
    from hpcfl.results.ranktimes import write_trace
    from hpcfl.system import outputs

    told = outputs.check(path, outputs.TRACE)
    runs, complete = _read(paths, asked)
    click.echo(f"Trace of {write_trace(path, runs)} events: {told}")
    if not complete:
        raise SystemExit(1)


def _scaling(paths: Sequence[str], asked: ReportOptions, form: str) -> str:
    """Return speed-up and efficiency of runs in a format."""
    from hpcfl.results.reader import find
    from hpcfl.results.scaling import lacking, study, table

    against, files = str(asked.speed_up), find(paths)
    runs, _ = usable_runs(files, lambda run: lacking(run, against), asked.where)
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be shown")
    return rendered(table(study(runs, against)), form)


def _show(paths: Sequence[str], asked: ReportOptions, form: str) -> None:
    from hpcfl.results import pooling, tables

    runs, complete = _read(paths, asked)
    if asked.target_accuracy is not None and not any(run.training for run in runs):
        raise UsageError(
            "--target-accuracy is of training, and none of the runs is of hpcfl train: leave it out"
        )
    pools = pooling.apart(runs) if asked.no_pool else pooling.group(runs, trainings=True)
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
    if form == "json" and asked.columns is None:
        text = tables.to_json(summaries, asked.baseline if len(summaries) > 1 else None)
    elif len(summaries) > 1 or asked.columns is not None:
        text = rendered(compared, form)
    else:
        text = _one(pools[0], summaries[0], form)
    click.echo(text, nl=form != "csv")
    if not complete:
        raise SystemExit(1)


def _one(pool: Pool, summary: Summary, form: str) -> str:
    """Return one run for a reader."""
    from hpcfl.results import ranktimes, tables

    if form == "markdown":
        return f"{tables.facts(summary).markdown()}\n\n{tables.phases(summary).markdown()}"
    if form in ("latex", "csv"):
        return rendered(tables.phases(summary), form)
    parts = [facts.text() for facts in tables.details(pool.runs[0])]
    parts.append(tables.render_run(summary))
    spent = ranktimes.shares(pool.run)
    parts += [spent.text()] if spent is not None else []
    parts.append(tables.render_promises(pool.runs[0]))
    return "\n\n".join(part for part in parts if part)


def rendered(table: Table, form: str) -> str:
    """Return a table in a format."""
    return str(getattr(table, "text" if form == "terminal" else form)())
