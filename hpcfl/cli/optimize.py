"""``hpcfl optimize``: settings under which training with noise does best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hpcfl.cli.options import Group, given, options
from hpcfl.cli.terminal import json_option, progress_bar, show
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.definition import make
from hpcfl.options.optimize import OptimizeOptions
from hpcfl.system import outputs

if TYPE_CHECKING:
    from hpcfl.comm.world import World
    from hpcfl.optimize.estimate import Estimate
    from hpcfl.system.outputs import Kind


@click.group("optimize", cls=Group)
def command() -> None:
    """Find settings under which training with noise does best."""


@command.command("fedsgd-dpc")
@options(OptimizeOptions)
@json_option()
def fedsgd_dpc(as_json: bool, **typed: Any) -> None:
    """Find how often FedSGD-DPC should query and reply: T* rounds of b* devices.

    U(T, b) bounds the squared distance of the trained model from the best one. T* and b* are where
    it is least, by the formulas of the paper and among whole numbers. The paper counts T b / N
    replies of a device; whole replies counts those of the device that replies most, which is the
    noise that a run needs. T of 0 means that no training beats the start.

    \b
    Examples:
      hpcfl optimize fedsgd-dpc --devices 10 --epsilon 1 --constants mnist.json
      hpcfl optimize fedsgd-dpc --devices 10 --dim 7840 --per-round 5 \\
          --total-samples 60000 --gradient-norm 18 --clip-norm 300 \\
          --smoothness 1.05 --convexity 1 --heterogeneity 0.5 --distance 600 \\
          --plot bound.png
      mpirun -n 11 hpcfl optimize fedsgd-dpc --dataset mnist --model softmax \\
          --partition two-digit --clip-norm 300 --epsilon 10 \\
          --save-constants mnist.json
      hpcfl optimize fedsgd-dpc --mechanism gaussian --constants mnist.json \\
          --clip-norm 10 --fraction 0.01 --rounds 500 --json
    """
    from hpcfl.comm.world import connect
    from hpcfl.optimize import constants
    from hpcfl.plots import inches_of

    asked = make(OptimizeOptions, given(typed))
    inches_of(asked.size)
    # Read before the estimate, which can take long; the same on every rank.
    known = constants.asked(asked)
    world = connect()
    told = world.first_alone(
        lambda: {
            kind: outputs.check(path, kind)
            for path, kind in (
                (asked.save_constants, outputs.CONSTANTS),
                (asked.plot, outputs.FIGURE),
            )
            if path is not None
        }
    )
    estimated = None if asked.dataset is None else _estimated(world, asked)
    error: HpcflError | None = None
    if told is not None:
        try:
            _answer(asked, known, estimated, as_json, told)
        except HpcflError as problem:
            error = problem
        except ArithmeticError as problem:
            error = UsageError(
                f"the bound cannot be computed for numbers so large or so small ({problem}): check "
                "--epsilon and the constants"
            )
    # The other ranks learn of an error: a rank that ends alone would leave the job hanging.
    world.settle(error)


def _estimated(world: World, asked: OptimizeOptions) -> Estimate | None:
    """Estimate the constants from data, with a bar on a terminal."""
    from hpcfl.optimize import estimate

    with progress_bar(1, "devices") as bar:

        def show_turn(done: int, turns: int) -> None:
            bar.length = turns
            bar.update(1)

        return estimate.run(world, asked, show_turn)


def _answer(
    asked: OptimizeOptions,
    known: dict[str, Any],
    estimated: Estimate | None,
    as_json: bool,
    told: Mapping[Kind, str],
) -> None:
    """Print what is found, draw it, and save the constants; `told` is how to speak of files."""
    from hpcfl.optimize import answer, constants, tables

    if estimated is not None:
        from hpcfl.optimize.estimate import WARNING

        click.echo(WARNING, err=True)
        known = estimated.constants.as_dict() | known
    bound = answer.bound(asked, known)
    if asked.save_constants is not None:
        constants.save(bound.constants, asked.save_constants)
    found = answer.find(bound, asked)
    if estimated is not None:
        found["estimate"] = estimated.as_dict()
    show(as_json, lambda: found, lambda: tables.render(found))
    if asked.save_constants is not None:
        click.echo(f"Constants: {told[outputs.CONSTANTS]}", err=as_json)
    if asked.plot is not None:
        from hpcfl.optimize.figure import draw
        from hpcfl.plots import framed, style

        style.save(draw(bound, asked.most, framed(asked.size)), asked.plot)
        click.echo(f"Figure: {told[outputs.FIGURE]}", err=as_json)
