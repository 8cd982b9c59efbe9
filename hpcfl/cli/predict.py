"""Commands that predict costs: `hpcfl predict`, `hpcfl advise`, and `hpcfl calibrate` for both."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hpcfl.cli.options import PLACE, Command, given, options
from hpcfl.cli.terminal import alone, json_option, progress_bar, show, warn
from hpcfl.errors import HpcflError
from hpcfl.options.advise import AdviseOptions
from hpcfl.options.definition import values_of
from hpcfl.options.predict import PredictOptions
from hpcfl.options.shared import PopulationOptions


@click.command("predict", cls=Command)
@click.argument("protocol")
@options(PredictOptions)
@json_option
@alone
def predict(as_json: bool, **typed: Any) -> None:
    """Predict bytes and seconds of a round of PROTOCOL, for any N, d and link.

    Bytes follow from the protocol, and CPU seconds from the measurements of 'hpcfl calibrate'. A
    prediction is immediate for up to a million devices and a billion parameters.

    \b
    Examples:
      hpcfl predict sparse
      hpcfl predict secagg --devices 25,50,75,100 --uplink-mbps 10
    """
    from hpcfl import api

    found = api.predict(**given(typed))
    document: dict[str, Any] = {"predictions": [one.as_dict() for one in found]}
    if found.asked.population is not None:
        document |= values_of(found.asked, PopulationOptions)
    show(as_json, lambda: document, lambda: found.table().text())


@click.command("advise", cls=Command)
@options(AdviseOptions)
@json_option
@alone
def advise(as_json: bool, **typed: Any) -> None:
    """List the protocols that satisfy constraints, with costs, and say why the others do not.

    The cheapest protocol comes first. Costs are those of a round on dedicated devices, predicted
    as by 'hpcfl predict' from the measurements of 'hpcfl calibrate' on this machine.

    \b
    Examples:
      hpcfl advise --devices 1000 --dim 1000000 --uplink-mbps 10
      hpcfl advise --helpers 2 --security active
      hpcfl advise --alpha 0.1 --criterion upload
    """
    from hpcfl import api
    from hpcfl.advice import tables
    from hpcfl.costmodel.calibration import default_path, load

    advice = api.advise(**given(typed))
    known = load(advice.asked.calibration or default_path())
    show(as_json, advice.as_dict, lambda: tables.table(advice, known).text())


@click.command("calibrate", cls=Command)
@click.argument("protocols", nargs=-1, metavar="[PROTOCOL]...")
@click.option(
    "--output",
    type=PLACE,
    help="JSON file to write, or to which these protocols are added if this machine "
    "and version made it.  [default: one for this host in the user's cache folder]",
)
@alone
def calibrate(protocols: tuple[str, ...], output: Path | None) -> None:
    """Measure the CPU time of protocols on this machine, in a minute or two each.

    Small real rounds of each PROTOCOL run in one process; without PROTOCOL, of all protocols that
    come with hpcfl. Close other programs, because they disturb the measurement.

    \b
    Examples:
      hpcfl calibrate
      hpcfl calibrate secagg mine:Mine --output mine.json
    """
    from hpcfl.algorithms.aggregation import PROTOCOLS, find
    from hpcfl.costmodel import learning
    from hpcfl.costmodel.calibration import default_path, load
    from hpcfl.system import outputs

    path = output or default_path()
    told = outputs.check(path, outputs.CALIBRATION)
    names = list(protocols or PROTOCOLS)
    for name in names:
        find(name)  # refuses a wrong name before minutes are spent
    with progress_bar(len(names), "calibrate") as bar:
        found = learning.calibrate(names, lambda name: bar.update(1))
    with suppress(HpcflError):  # if there is no calibration to add to
        found = load(path).updated(found)
    found.save(path)
    click.echo(f"Calibration: {told}")
    for name, error in found.errors.items():
        if error > learning.MOST_ERROR:
            warn(
                f"the fitted costs of {name} miss its rounds by {error:.0%}: close other programs, "
                "and calibrate again"
            )
