"""`hpcfl plot`: draw figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.cli.options import given, options
from hpcfl.cli.terminal import alone, usable_runs
from hpcfl.errors import UsageError
from hpcfl.plots import KINDS, PlotOptions, chosen


@click.command("plot")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    required=True,
    help="; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items()) + ".",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File of the figure: .png, .svg or .pdf; overwritten.  [default: KIND.png]",
)
@options(PlotOptions)
@click.option("--no-pool", is_flag=True, help="Keep launches of one configuration apart.")
@alone
def command(
    paths: tuple[str, ...],
    kind: str,
    output: Path | None,
    no_pool: bool,
    **typed: Any,
) -> None:
    """Draw a figure of results.

    PATH is a results file or a folder of them. Launches of one configuration on equal machines
    are pooled as repeats.

    \b
    Examples:
      hpcfl plot results/train-sparse-100x199210-*.h5 --kind partition
      hpcfl plot results/ --kind accuracy --against bytes --output accuracy.pdf
      hpcfl plot secagg.h5 sparse.h5 --kind accuracy --against seconds --target 0.97
      hpcfl plot results/ --kind scaling --against devices --output scaling.svg
      hpcfl plot secagg.h5 sparse.h5 --kind phases
      hpcfl plot sparse.h5 --kind ranks --style box --clock wall
      hpcfl plot sparse.h5 --kind timeline --round 3
      hpcfl plot results/train-cdp-*.h5 --kind epsilon
    """
    from hpcfl import api
    from hpcfl.plots import style
    from hpcfl.results.reader import find

    path = output or Path(f"{kind}.png")
    style.check_path(path)
    wanted = given(typed)
    values = chosen(kind, wanted)
    files = find(paths)
    module = KINDS[kind].module()
    runs, errors = usable_runs(files, lambda run: module.lacking(run, **values))
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be drawn")
    style.save(api.plot(runs, kind, pool=not no_pool, **wanted), path)
    click.echo(f"Figure: {path}")
    if any(not isinstance(error, UsageError) for error in errors):
        raise SystemExit(1)
