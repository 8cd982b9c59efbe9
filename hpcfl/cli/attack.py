"""``hpcfl attack``: what a curious server makes of a recorded round, and of noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.audit.instance import AuditOptions, Instance, default
from hpcfl.cli.options import Group, given, option, options
from hpcfl.cli.terminal import alone, json_option, progress_bar, show
from hpcfl.errors import HpcflError
from hpcfl.options.definition import make, options_of


@click.group("attack", cls=Group)
def command() -> None:
    """Play the curious server on a recorded round."""


@command.command("components")
@click.argument("transcript", type=click.Path(path_type=Path))
@option(
    "--protocol",
    metavar="MODULE:CLASS",
    help="Class of the round's protocol, if it does not come with hpcfl.",
)
@json_option("Print the findings as JSON.")
@alone
def components(transcript: Path, protocol: str | None, as_json: bool) -> None:
    """Recover single values from the messages of a round in TRANSCRIPT.

    The server followed the protocol. It reconstructs the secrets that it needs to unmask the sum,
    takes every mask that it or a colluding device knows off each upload, and recognises values of
    which no mask is left as they are small. They are compared with the true values, and their
    number with the prediction.

    \b
    Examples:
      hpcfl bench sparse --rounds 1 --warmup 0 --gamma 0.33 \\
          --insecure-seed 1 --keep-transcript round.npz
      hpcfl attack components round.npz
    """
    from hpcfl.attack.components import attack
    from hpcfl.attack.transcript import load

    held = load(transcript, protocol)
    try:
        found = attack(held)
    except HpcflError as error:
        raise HpcflError(f"{transcript}: {error}") from None
    show(as_json, found.as_dict, found.render)
    if not found.agrees:
        raise HpcflError(
            f"{found.unmasked} values have no mask left, {found.prediction.count:.6g} are "
            "predicted: they differ by more than chance"
        )


@command.command("audit")
@click.argument("algorithm")
@options(AuditOptions)
@options(Instance, defaults=False)
@json_option("Print the audit as JSON.")
@alone
def audit(algorithm: str, as_json: bool, **typed: Any) -> None:
    """Measure the privacy of ALGORITHM's noise: a lower bound on epsilon.

    ALGORITHM is cdp, dp-dsgd, dp-fedavg, locks, fedsgd-dpc, or MODULE:CLASS of your own.

    A small instance runs many times on each of two neighbouring datasets, which differ in a record
    or user whose gradient is as long as clipping allows. How well the runs are told apart bounds
    epsilon from below, for comparison with what the paper claims and with what is proven. Each
    algorithm has an instance of its own; options change it.

    \b
    Examples:
      hpcfl attack audit cdp
      hpcfl attack audit dp-dsgd --runs 2000 --sigma 1
      hpcfl attack audit fedsgd-dpc --mechanism laplace --samples 1 \\
          --sigma 0.5 --devices 4
    """
    from hpcfl.audit.measure import audit as measure

    settings = given(typed)
    how = {name: settings.pop(name) for name in options_of(AuditOptions) if name in settings}
    asked = make(AuditOptions, how)
    with progress_bar(2 * asked.runs, algorithm) as bar:
        found = measure(default(algorithm, **settings), **vars(asked), progress=bar.update)
    show(as_json, found.as_dict, found.render)
    if not found.agrees:
        raise HpcflError(
            f"an epsilon of at least {found.best:.6g} was measured, {found.proven:.6g} is proven: "
            "there is less noise than the account assumes"
        )
