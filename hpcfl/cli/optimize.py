"""``hpcfl optimize``: settings under which training with noise does best."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.cli.options import Group, option
from hpcfl.cli.terminal import alone, json_option, show


@click.group("optimize", cls=Group)
def command() -> None:
    """Find settings under which training with noise does best."""


@command.command("fedsgd-dpc")
@click.argument("constants", type=Path, metavar="CONSTANTS.json")
@option(
    "--epsilon", type=float, default=1.0, help="Privacy budget of a device for all its replies."
)
@json_option()
@alone
def fedsgd_dpc(constants: Path, epsilon: float, as_json: bool) -> None:
    """Find how often FedSGD-DPC should query and reply: T rounds of b devices.

    U(T, b) bounds the squared distance of the trained model from the best one. T and b are where it
    is least, by the formulas of the paper and among whole numbers. The paper counts T b / N replies
    of a device; among whole numbers, those of the device that replies most are counted, which is
    the noise that a run needs. T of 0 means that no training beats the start.

    CONSTANTS.json has the constants of the bound by name: devices N, dim p, samples d (on all
    devices), gradient_norm G, smoothness lambda, convexity mu, heterogeneity Gamma, distance Y0
    (squared, of the start from the best model) and clip_norm xi (l1).

    \b
    Examples:
      hpcfl optimize fedsgd-dpc mnist.json --epsilon 5
    """
    from hpcfl.privacy import queries

    found = queries.best(queries.Bound(queries.Constants.read(constants), epsilon))
    show(as_json, lambda: found, lambda: queries.render(found))
