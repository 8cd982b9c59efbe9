"""``hpcfl report``: what stored runs cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcfl.errors import HpcflError, UsageError

if TYPE_CHECKING:
    from hpcfl.results.linkmodel import LinkModel
    from hpcfl.results.reader import Run
    from hpcfl.results.summary import Summary


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--baseline",
    metavar="NAME",
    help="Run to compare with: a file's name, or a protocol's.  [default: the first secagg run, "
    "else the first run]",
)
@click.option(
    "--uplink-mbps", type=float, help="Uplink of the link model, Mbit/s.  [default: the run's own]"
)
@click.option(
    "--downlink-mbps",
    type=float,
    help="Downlink of the link model, Mbit/s.  [default: the run's own]",
)
@click.option(
    "--latency-ms",
    type=float,
    help="Latency of the link model, milliseconds.  [default: the run's own]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON.")
def command(
    paths: tuple[str, ...],
    baseline: str | None,
    uplink_mbps: float | None,
    downlink_mbps: float | None,
    latency_ms: float | None,
    as_json: bool,
) -> None:
    """Show what runs cost: bytes, CPU time and wall time, phase by phase.

    PATH is a results file or a folder of them. One run is shown in full; several are shown side
    by side, with ratios to a baseline. Warm-up rounds are left out.

    \b
    Examples:
      hpcfl report results/
      hpcfl report secagg.h5 sparse.h5 --baseline secagg
      hpcfl report sparse.h5 --uplink-mbps 10 --downlink-mbps 50 --latency-ms 30
      hpcfl report results/ --json > summary.json
    """
    from hpcfl.launch import leave_to_first_rank

    if leave_to_first_rank():
        return  # started by mpirun all the same: one report is enough

    from hpcfl.results.reader import find, load
    from hpcfl.results.summary import choose_baseline, summarise
    from hpcfl.results.tables import (
        render_comparison,
        render_details,
        render_promises,
        render_run,
    )

    files = find(paths)
    options = {
        "uplink_mbps": uplink_mbps,
        "downlink_mbps": downlink_mbps,
        "latency_ms": latency_ms,
    }
    runs: list[Run] = []
    summaries: list[Summary] = []
    for file in files:
        try:
            run = load(file)
            summaries.append(summarise(run, _link(run, options)))
        except HpcflError as error:
            # One bad file does not hide the others; a bad option concerns them all.
            if len(files) == 1 or isinstance(error, UsageError):
                raise
            click.echo(f"warning: {error}; left out", err=True)
        else:
            runs.append(run)
    if not runs:
        raise HpcflError(f"none of the {len(files)} files could be read")
    if len({summary.link for summary in summaries}) > 1:
        raise UsageError(
            "the runs were made for different links, so their modelled times cannot be compared: "
            "give --uplink-mbps, --downlink-mbps and --latency-ms"
        )
    chosen = choose_baseline(summaries, baseline)
    for summary in summaries:
        _warn_about(summary)

    if as_json:
        click.echo(_json(summaries, chosen))
    elif len(summaries) == 1:
        parts = [render_details(runs[0]), render_run(summaries[0]), render_promises(runs[0])]
        click.echo("\n\n".join(part for part in parts if part))
    else:
        click.echo(render_comparison(summaries, baseline))
    if len(runs) < len(files):
        raise SystemExit(1)


def _link(run: Run, options: dict[str, float | None]) -> LinkModel:
    """Return the link model: as asked for, else as stored with the run, else the default."""
    from hpcfl.results.linkmodel import LinkModel

    values = {}
    for name, asked in options.items():
        value = run.config.get(name) if asked is None else asked
        if isinstance(value, int | float):
            values[name] = float(value)
    return LinkModel(**values)


def _warn_about(summary: Summary) -> None:
    if summary.status == "failed":
        click.echo(f"warning: {summary.path} is of a run that failed", err=True)
    elif summary.status != "complete":
        click.echo(
            f"warning: {summary.path} is of a run that has not ended or was killed "
            f"(status {summary.status})",
            err=True,
        )
    if summary.rounds_validated < summary.rounds_total:
        wrong = summary.rounds_total - summary.rounds_validated
        click.echo(f"warning: {summary.path} has {wrong} rounds that failed validation", err=True)


def _json(summaries: list[Summary], baseline: Summary) -> str:
    """Return the summaries, and the ratios where there is something to compare."""
    import json
    from dataclasses import asdict

    from hpcfl.results.summary import ratios

    runs = [summary.as_dict() for summary in summaries]
    report: dict[str, Any] = {"runs": runs}
    if len(runs) > 1:
        report["baseline"] = baseline.path
        for run, summary in zip(runs, summaries, strict=True):
            run["baseline_over_run"] = asdict(ratios(baseline, summary))
    return json.dumps(report, indent=2, allow_nan=False)
