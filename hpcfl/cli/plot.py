"""`hpcfl plot`: draw figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.cli.options import PLACE, Command, given, option, options
from hpcfl.cli.terminal import alone, usable_runs
from hpcfl.errors import UsageError
from hpcfl.options.definition import Section
from hpcfl.plots import KINDS, PlotOptions, chosen
from hpcfl.system import outputs


@click.command("plot", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@option(
    "--kind",
    metavar="KIND",
    section=Section.WHAT,
    type=click.Choice([*KINDS]),
    required=True,
    help="; ".join(f"{name}: {what}" for name, what in KINDS.items()) + ".",
)
@option(
    "--output",
    type=PLACE,
    help="File of the figure: .png, .svg or .pdf; an older one is replaced.  [default: KIND.png]",
)
@options(PlotOptions)
@alone
def command(paths: tuple[str, ...], kind: str, output: Path | None, **typed: Any) -> None:
    """Draw a figure of results.

    PATH is a results file or a folder of them. Launches of one configuration on equal machines
    are pooled as repeats, trainings that differ in their seeds alone are drawn as their mean, and
    a training that was resumed with the one that it went on from. A protocol has one colour and
    marker, a phase one colour, in all figures.

    \b
    Examples:
      hpcfl plot results/ --kind accuracy --against bytes --output accuracy.pdf
      hpcfl plot results/ --kind scaling --size column --output scaling.pdf
      hpcfl plot results/ --kind scaling --against dim \\
          --where 'protocol=secagg|sparse,devices=100'
      hpcfl plot results/strong/* --kind scaling --against ranks
      hpcfl plot sparse.h5 --kind timeline --round 3
      hpcfl plot results/train-cdp-*.h5 --kind accuracy --against epsilon
    """
    from hpcfl.plots import style
    from hpcfl.results.reader import find

    path = output or Path(f"{kind}.png")
    told = outputs.check(path, outputs.FIGURE)
    drawing = chosen(kind, given(typed))
    files = find(paths)
    runs, errors = usable_runs(files, drawing.lacking, drawing.asked.where)
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be drawn")
    style.save(drawing.draw(runs), path)
    click.echo(f"Figure: {told}")
    if any(not isinstance(error, UsageError) for error in errors):
        raise SystemExit(1)
