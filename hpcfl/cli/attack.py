"""``hpcfl attack``: what a curious server makes of a recorded round, and of noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.cli.terminal import alone, json_option, show
from hpcfl.errors import HpcflError


@click.group("attack")
def command() -> None:
    """Play the curious server on a recorded round."""


@command.command("components")
@click.argument("transcript", type=click.Path(path_type=Path))
@click.option(
    "--largest", type=click.IntRange(1, 6), default=3, help="Look for sums of up to so many values."
)
@click.option(
    "--protocol",
    metavar="MODULE:CLASS",
    help="Class of the round's protocol, if it does not come with hpcfl.",
)
@json_option("Print the findings as JSON.")
@alone
def components(transcript: Path, largest: int, protocol: str | None, as_json: bool) -> None:
    """Recover single values, and sums of few, from the messages of a round in TRANSCRIPT.

    The server followed the protocol. It reconstructs the secrets that it needs to unmask the sum,
    takes every mask that it or a colluding device knows off each upload, and looks for what is
    small among the rest: at each coordinate, the sum over devices that masked it with each other.
    What it finds is compared with the true values, and their number with the prediction.

    \b
    Examples:
      hpcfl bench sparse --rounds 1 --warmup 0 --gamma 0.33 --insecure-seed 1 \\
          --keep-transcript round.npz
      hpcfl attack components round.npz
    """
    from hpcfl.attack.components import attack
    from hpcfl.attack.tables import render
    from hpcfl.attack.transcript import load

    held = load(transcript, protocol)
    try:
        found = attack(held, largest)
    except HpcflError as error:
        raise HpcflError(f"{transcript}: {error}") from None
    show(as_json, found.as_dict, lambda: render(found))
    if not found.agrees:
        raise HpcflError(
            f"{found.alone.correct} values were recovered alone, {found.prediction.count:.6g} are "
            "predicted: they differ by more than chance"
        )


@command.command("audit")
@click.argument("algorithm")
@click.option("--runs", type=int, default=5000, help="Runs on each dataset.")
@click.option("--seed", type=int, default=0, help="Seed of all randomness.")
@click.option("--confidence", type=float, default=0.99, help="Confidence of each lower bound.")
@click.option("--sigma", type=float, help="Noise, as of hpcfl train; the clipping norm is 1.")
@click.option("--rounds", type=int, help="Rounds of a run.")
@click.option("--devices", type=int, help="Number of devices.")
@click.option("--per-round", type=int, help="Devices in a round (locks: kept in a round).")
@click.option("--samples", type=int, help="Samples of a device.")
@click.option("--batch-size", "batch", type=int, help="Samples in a batch.")
@click.option("--steps", type=int, help="Local steps in a round.")
@click.option("--delta", type=float, help="Delta of all values.")
@click.option(
    "--aggregate",
    type=click.Choice(("fedavg", "secagg")),
    help="Whether the server sees every upload, or only sums (cdp, dp-dsgd).",
)
@click.option(
    "--shuffle",
    type=click.Choice(("fresh", "continuing", "poisson")),
    help="How a device goes through its data.",
)
@click.option(
    "--secret-order",
    is_flag=True,
    default=None,
    help="The observer does not know the order of a device's samples (cdp, dp-dsgd).",
)
@click.option(
    "--mechanism", type=click.Choice(("gaussian", "laplace")), help="Kind of noise (fedsgd-dpc)."
)
@click.option(
    "--sampling",
    type=click.Choice(("exact", "poisson", "balanced")),
    help="How the devices of a round are drawn.",
)
@click.option("--first-stage", type=int, help="Users invited in a round (locks).")
@click.option("--sigma-norms", type=float, help="Noise of norms (locks).")
@click.option("--variant", type=click.Choice(("trusted", "local")), help="Who adds noise (locks).")
@click.option("--replayed", type=int, help="Last rounds that the next launch plays again.")
@click.option("--resumes", type=int, help="How often they are played again.  [default: once]")
@click.option("--dropout", type=float, help="Part of all devices that drops out of every round.")
@click.option(
    "--dropout-model",
    type=click.Choice(("exact", "bernoulli")),
    help="That part exactly, or each by chance.",
)
@click.option(
    "--noise",
    type=click.Choice(("central", "distributed")),
    help="Added by a trusted server, or by all devices, to their integers (dp-fedavg).",
)
@click.option("--absent", type=int, help="Devices that are missing from every sum, unplanned.")
@click.option("--ranks", type=int, help="Ranks of the devices, whose noise must be apart.")
@json_option("Print the audit as JSON.")
@alone
def audit(
    algorithm: str, runs: int, seed: int, confidence: float, as_json: bool, **settings: Any
) -> None:
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
      hpcfl attack audit fedsgd-dpc --mechanism laplace --samples 1 --sigma 0.5 --devices 4
    """
    from hpcfl.audit.instance import default
    from hpcfl.audit.measure import audit as measure
    from hpcfl.audit.tables import render

    given = {name: value for name, value in settings.items() if value is not None}
    found = measure(default(algorithm, **given), runs, seed, confidence)
    show(as_json, found.as_dict, lambda: render(found))
    if not found.agrees:
        raise HpcflError(
            f"an epsilon of at least {found.best:.6g} was measured, {found.proven:.6g} is proven: "
            "there is less noise than the account assumes"
        )
