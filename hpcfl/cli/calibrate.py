"""`hpcfl calibrate`: measure what work costs here, for `hpcfl predict` and `hpcfl advise`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.cli.options import PLACE, Command, option
from hpcfl.cli.terminal import alone, progress_bar, warn
from hpcfl.system import outputs


@click.command("calibrate", cls=Command)
@click.argument("protocols", nargs=-1, metavar="[PROTOCOL]...")
@option(
    "--output",
    type=PLACE,
    help="JSON file to write; an older calibration is replaced.  [default: one for this host in "
    "the user's cache folder]",
)
@alone
def command(protocols: tuple[str, ...], output: Path | None) -> None:
    """Measure what the work of protocols costs on this machine, in a few minutes.

    Small real rounds of each PROTOCOL are played in one process; without one, of all protocols that
    come with hpcfl. Close other programs: they make work take longer.

    \b
    Examples:
      hpcfl calibrate
      hpcfl calibrate secagg mine:Mine --output mine.json
    """
    from hpcfl.algorithms.aggregation import PROTOCOLS, find
    from hpcfl.costmodel.calibration import default_path
    from hpcfl.costmodel.learning import MOST_ERROR, calibrate

    path = output or default_path()
    told = outputs.check(path, outputs.CALIBRATION)
    names = list(protocols or PROTOCOLS)
    for name in names:
        find(name)  # refuses a wrong name before minutes are spent
    with progress_bar(len(names), "calibrate") as bar:
        found = calibrate(names, lambda name: bar.update(1))
    found.save(path)
    click.echo(f"Calibration: {told}")
    for name, error in found.errors.items():
        if error > MOST_ERROR:
            warn(
                f"rounds of {name} took {error:.0%} more or less than one cost of each term "
                "explains: were other programs at work?"
            )
