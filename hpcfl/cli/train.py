"""`hpcfl train`: train a model through an aggregation protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.algorithms.federated import REGISTRY
from hpcfl.cli.options import Command, given, options
from hpcfl.cli.terminal import footer_wanted, json_option, show, show_footer, warn_of_insecurity
from hpcfl.options.privacy import PrivacyOptions
from hpcfl.options.protocols import ProofOptions, unused
from hpcfl.options.training import TrainOptions
from hpcfl.training.presets import PRESETS


def _unused(algorithm: str) -> set[str]:
    from hpcfl.algorithms.federated import find

    return unused(PrivacyOptions, (*find(algorithm).options, ProofOptions))


@click.command("train", cls=Command, lists={"Algorithms": REGISTRY}, unused=_unused)
@click.argument("algorithm", required=False)
@click.option(
    "--preset",
    metavar="NAME",
    help=f"Settings of a paper; other options override them: {', '.join(PRESETS)}.",
)
@options(TrainOptions)
@json_option
def train(preset: str | None, as_json: bool, **typed: Any) -> None:
    """Train a model by ALGORITHM; an aggregation protocol sums its updates.

    The updates of every round go through the same protocols, checks and accounting as in `hpcfl
    bench`. 'hpcfl train ALGORITHM --help' shows only the options that the algorithm has.

    \b
    Examples:
      hpcfl train fedavg          scikit-learn's digits, 100 devices, one process
      mpirun -n 3 hpcfl train fedavg --aggregate sparse --devices 100 \\
          --dataset mnist --data-dir data --target-accuracy 0.97
      hpcfl train dp-fedavg --aggregate secagg --noise distributed \\
          --noise-multiplier 1 --rounds 20
      mpirun -n 3 hpcfl train --resume results/run.h5
    """
    from hpcfl.algorithms.federated import find
    from hpcfl.cli import watching
    from hpcfl.comm.world import connect
    from hpcfl.system.interruption import noting_signals
    from hpcfl.training import session

    footed = footer_wanted(as_json)
    world = connect()
    options = session.asked(world, given(typed), preset)
    warn_of_insecurity(world.rank == 0 and options.insecure_seed is not None)

    files: list[Path] = []
    try:
        with noting_signals(to_the_end=True):
            spoken = (
                watching.Spoken() if as_json else watching.Rows(find(options.algorithm).private)
            )
            trained = session.run(world, options, spoken, ended=files.append)
        if trained is not None:
            _show(as_json, trained[0])
    finally:
        for path in files if footed else []:
            click.echo()
            show_footer(path)


def _show(as_json: bool, path: Path) -> None:
    from hpcfl.results.reader import load
    from hpcfl.training.report import render_end

    run = load(path)
    columns = {name: values.tolist() for name, values in run.training.items()}
    rounds = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    reason = run.environment["stop_reason"]
    show(
        as_json,
        lambda: {"path": str(path), "rounds": rounds, "stop_reason": reason},
        lambda: render_end(run),
    )
