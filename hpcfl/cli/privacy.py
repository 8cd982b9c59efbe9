"""``hpcfl privacy``: what a protocol hides, and what not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from hpcfl.errors import UsageError


class FractionType(click.ParamType):
    """A fraction, kept exact: a third of 99 devices is 33."""

    name = "fraction"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is no fraction like 1/3 or 0.25", param, ctx)


@click.group("privacy")
def command() -> None:
    """Say what a protocol hides, and what not."""


@command.command("exposure")
@click.argument("protocol")
@click.option("--devices", type=int, default=100, show_default=True, help="Number N of devices.")
@click.option(
    "--alpha",
    type=float,
    default=0.1,
    show_default=True,
    help="Fraction of the coordinates that a device sends (sparse, cohort).",
)
@click.option(
    "--dropout",
    type=float,
    default=0.3,
    show_default=True,
    help="Fraction theta of the devices that disappear after key sharing, before their upload.",
)
@click.option(
    "--dropout-model",
    type=click.Choice(["exact", "bernoulli", "targeted"]),
    default="exact",
    show_default=True,
    help="Exactly that fraction, rounded down; or each by chance; or exactly, none colluding.",
)
@click.option(
    "--gamma",
    type=FractionType(),
    metavar="FRACTION",
    help="Fraction of the devices that collude with the server, rounded down.  [default: 1/3]",
)
@click.option("--colluding", type=int, help="Number of devices that collude, instead of --gamma.")
@click.option(
    "--degree",
    type=int,
    help="Neighbours of a device in the masking graph (secagg-graph, sparse, cohort).  "
    "[default: all; required by secagg-graph]",
)
@click.option(
    "--dim",
    type=int,
    default=165_000,
    show_default=True,
    help="Number d of coordinates; for counts only.",
)
@click.option("--floor", type=int, help="Report anonymity sets with fewer members than this.")
@click.option(
    "--samples",
    type=int,
    help="Coordinates to simulate.  [default: 100000, fewer with over 200 devices]",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the simulation."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Also draw T and what is exposed against alpha, for several dropout rates: "
    ".png, .svg or .pdf (sparse, cohort).",
)
def exposure(
    protocol: str,
    devices: int,
    dropout: float,
    dropout_model: str,
    gamma: Fraction | None,
    colluding: int | None,
    as_json: bool,
    plot: Path | None,
    **options: Any,
) -> None:
    """Show what a round of PROTOCOL exposes: fedavg, secagg, secagg-graph, sparse or cohort.

    The server follows the protocol, but is curious, and so are the devices that collude with it.
    At each coordinate they learn the sum over every connected component of the masking graph. A
    value that an honest device sends is hidden only within its component, its anonymity set.

    Every figure comes by formula, where one is known, and by a simulation of the graph, with half
    the width of its 95 % confidence interval.

    \b
    Examples:
      hpcfl privacy exposure sparse
      hpcfl privacy exposure sparse --devices 1000 --alpha 0.2 --dropout 0 --gamma 1/4
      hpcfl privacy exposure cohort --floor 2
      hpcfl privacy exposure secagg-graph --devices 1000 --degree 40
      hpcfl privacy exposure sparse --colluding 0 --json > exposure.json
      hpcfl privacy exposure sparse --plot exposure.png
    """
    from hpcfl.launch import guess_rank

    if guess_rank() != 0:
        return  # started by mpirun all the same: one answer is enough

    from hpcfl.privacy.exposure import exposure as find_exposure
    from hpcfl.privacy.population import Population, count_of
    from hpcfl.privacy.tables import render

    if colluding is None:
        colluding = count_of(Fraction(1, 3) if gamma is None else gamma, devices)
    elif gamma is not None:
        raise UsageError("--gamma and --colluding say the same in two ways: give one of them")
    population = Population(devices, colluding, dropout, dropout_model)
    if plot is not None:
        from hpcfl.plots import exposure as figures
        from hpcfl.plots import style

        style.check_path(plot)
        style.save(figures.draw(protocol, devices, colluding, figures.DROPOUTS), plot)
        click.echo(f"Figure: {plot}", err=as_json)
    found = find_exposure(protocol, population, **options)
    if as_json:
        import json

        click.echo(json.dumps(found.as_dict(), indent=2, allow_nan=False))
    else:
        click.echo(render(found))
