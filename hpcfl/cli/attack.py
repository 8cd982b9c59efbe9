"""``hpcfl attack``: what a curious server makes of a recorded round."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.errors import HpcflError


@click.group("attack")
def command() -> None:
    """Play the curious server on a recorded round."""


@command.command("components")
@click.argument("transcript", type=click.Path(path_type=Path))
@click.option(
    "--largest",
    type=click.IntRange(1, 6),
    default=3,
    show_default=True,
    help="Look for sums of up to so many values.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def components(transcript: Path, largest: int, as_json: bool) -> None:
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
    from hpcfl.launch import leave_to_first_rank

    if leave_to_first_rank():
        return  # started by mpirun all the same: one answer is enough

    from hpcfl.attack.components import attack
    from hpcfl.attack.tables import render
    from hpcfl.attack.transcript import load

    found = attack(load(transcript), largest)
    if as_json:
        import json

        click.echo(json.dumps(found.as_dict(), indent=2, allow_nan=False))
    else:
        click.echo(render(found))
    if not found.agrees:
        raise HpcflError(
            f"{found.alone.correct} values were recovered alone, {found.prediction.count:.6g} are "
            "predicted: they differ by more than chance"
        )
