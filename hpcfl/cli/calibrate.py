"""`hpcfl calibrate`: measure what operations and messages cost here, for `hpcfl predict`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.cli.options import PLACE, Command, option
from hpcfl.cli.terminal import progress_bar, warn
from hpcfl.system import outputs


@click.command("calibrate", cls=Command)
@option(
    "--output",
    type=PLACE,
    help="JSON file to write; an older calibration is replaced.  [default: one for this host in "
    "the user's cache folder]",
)
def command(output: Path | None) -> None:
    """Measure what a round's operations cost on this machine, in about half a minute.

    Under mpirun messages between the ranks are measured as well, which predictions for as many
    ranks need.

    \b
    Examples:
      hpcfl calibrate
      mpirun -n 3 hpcfl calibrate
      hpcfl calibrate --output phone.json
    """
    from hpcfl.algorithms.aggregation.costs import OPERATIONS
    from hpcfl.comm.world import connect
    from hpcfl.costmodel.calibration import default_path
    from hpcfl.costmodel.measuring import DISTURBED, calibrate

    world = connect()
    path = output or default_path()
    # Found out before half a minute is spent.
    told = world.first_alone(lambda: outputs.check(path, outputs.CALIBRATION))
    with progress_bar(len(OPERATIONS), "calibrate") as bar:
        found = calibrate(world, lambda name: bar.update(1))
    world.first_alone(lambda: found.save(path))
    if world.rank == 0:
        click.echo(
            f"a mask: {1e9 * found.cost('mask_word'):.2f} ns a coordinate; an agreement: "
            f"{1e6 * found.cost('agreement'):.1f} us; ranks: {found.ranks}\nCalibration: {told}"
        )
        for sentence in found.about[DISTURBED]:
            warn(sentence)
