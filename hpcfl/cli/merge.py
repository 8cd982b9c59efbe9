"""`hpcfl merge`: put the results of several jobs into one folder."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.cli.options import PLACE, Command, option
from hpcfl.cli.terminal import alone, warn
from hpcfl.report.formats import counted


@click.command("merge", cls=Command)
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@option("--output", required=True, type=PLACE, help="The new folder.")
@alone
def command(paths: tuple[Path, ...], output: Path) -> None:
    """Copy the results files of several jobs into one new folder.

    PATH is a results file or a folder of them; they are only read. Two files of the same run are
    refused. Incomplete runs are copied, files that cannot be read are left out; both are reported,
    with exit status 1, and so are cells of a sweep's folder without results.

    \b
    Examples:
      hpcfl merge results/monday results/tuesday --output results/all
      hpcfl merge results/array-* --output results/table1
      hpcfl report results/all
    """
    from hpcfl.sweeping.merge import merge

    merged = merge(paths, output)
    for warning in merged.warnings:
        warn(warning)
    complete = sum(run.status == "complete" for run in merged.runs)
    click.echo(f"{counted(len(merged.runs), 'run')}, {complete} of them complete, in {output}")
    if merged.warnings:
        raise SystemExit(1)
