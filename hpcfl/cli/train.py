"""`hpcfl train`: train a real model through an aggregation protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpcfl.cli.options import link_options, output_option, protocol_options, seed_options
from hpcfl.train.presets import PRESETS

if TYPE_CHECKING:
    from hpcfl.train.experiment import RoundResult

LOCAL = (
    *("epochs", "steps", "batch_size", "learning_rate"),
    *("momentum", "decay", "weight_decay"),
)
TRAIN = (
    *("dataset", "data_dir", "partition", "model", "per_round", "sampling"),
    *("server_learning_rate", "server_momentum"),
    *("target_accuracy", "max_seconds", "torch_device", "checkpoint_every", "resume"),
    *("error_feedback", "device_loss"),
)


def _use_preset(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Let a preset's settings be the defaults of this call."""
    if name is not None:
        context.default_map = PRESETS[name]


@click.command("train")
@click.argument("algorithm")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_use_preset,
    help=f"Settings of a paper; other options override them: {', '.join(PRESETS)}.",
)
@click.option(
    "--aggregate",
    default="fedavg",
    show_default=True,
    help="Protocol that sums the updates: one of hpcfl bench's, or MODULE:CLASS.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Number of devices.  [default: one on every rank but the server's, 100 in one process]",
)
@click.option(
    "--dataset",
    type=click.Choice(["digits", "synthetic", "mnist", "cifar10", "adult", "femnist"]),
    default="digits",
    show_default=True,
    help="Data set; digits and synthetic need no files.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder of the data sets.  [default: $HPCFL_DATA]",
)
@click.option(
    "--partition",
    default="iid",
    show_default=True,
    help="iid, shards, two-digit, dirichlet:A or writer.",
)
@click.option("--model", help="Model, or MODULE:FUNCTION.  [default: one for the data set]")
@click.option("--rounds", type=int, default=100, show_default=True, help="Rounds at most.")
@click.option("--target-accuracy", type=float, help="Stop at this accuracy on held-out data.")
@click.option("--max-seconds", type=float, help="Stop after the round that passes this time.")
@click.option("--per-round", type=int, help="Devices that take part in a round.  [default: all]")
@click.option(
    "--sampling",
    type=click.Choice(["exact", "poisson"]),
    default="exact",
    show_default=True,
    help="Exactly that many devices, or each by chance.",
)
@click.option("--epochs", type=int, help="Local epochs a round.  [default: 5, without --steps]")
@click.option("--steps", type=int, help="Local steps a round, instead of epochs.")
@click.option("--batch-size", type=int, default=28, show_default=True, help="0: all data.")
@click.option("--learning-rate", type=float, default=0.01, show_default=True)
@click.option("--momentum", type=float, default=0.5, show_default=True)
@click.option(
    "--decay", type=float, default=1.0, show_default=True, help="Of the learning rate, a round."
)
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--server-learning-rate", type=float, default=1.0, show_default=True)
@click.option("--server-momentum", type=float, default=0.0, show_default=True)
@click.option(
    "--torch-device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where devices train; ranks share a GPU.",
)
@click.option(
    "--error-feedback",
    is_flag=True,
    help="Add what a device has not sent to its next update (rand-k, top-k).",
)
@click.option("--device-loss", is_flag=True, help="Record the loss on every device's own data.")
@click.option(
    "--checkpoint-every",
    type=int,
    metavar="ROUNDS",
    help="Keep the state beside the results file, every so many rounds.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    help="Go on from a checkpoint, with the options of the run that wrote it.",
)
@output_option
@click.option("--json", "as_json", is_flag=True, help="Print the rounds as JSON.")
@seed_options
@protocol_options
@link_options
@click.pass_context
def command(
    context: click.Context,
    algorithm: str,
    aggregate: str,
    devices: int | None,
    output: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a model by ALGORITHM, its updates summed by an aggregation protocol.

    Every round's update goes through the protocol, the checks and the ledger that `hpcfl bench`
    measures.

    \b
    Algorithms:
      fedavg    every device sends its update
      rand-k    a random part alpha of its coordinates, in the clear
      top-k     the part alpha of the largest magnitude, in the clear

    \b
    Examples:
      hpcfl train fedavg                                     digits, 100 devices, one process
      mpirun -n 3 hpcfl train fedavg --aggregate sparse --devices 100 --dataset mnist \\
          --data-dir data --target-accuracy 0.97
      mpirun -n 17 hpcfl train fedavg --aggregate secagg --dataset adult --partition dirichlet:0.5
      hpcfl train top-k --alpha 0.01 --error-feedback
      mpirun -n 3 hpcfl train fedavg --preset sparse-secagg-mnist --aggregate sparse --devices 25
    """
    import math

    from hpcfl.bench.experiment import Options
    from hpcfl.comm.world import connect
    from hpcfl.learning.training import LocalOptions
    from hpcfl.train import session
    from hpcfl.train.experiment import TrainOptions

    # Of a preset's steps and typed epochs, or the other way round, what is typed is meant.
    typed = {
        name
        for name in ("epochs", "steps")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if len(typed) == 1:
        options[({"epochs", "steps"} - typed).pop()] = None
    elif options["epochs"] is None and options["steps"] is None:
        options["epochs"] = 5
    local = LocalOptions(**{name: options.pop(name) for name in LOCAL})
    training = {name: options.pop(name) for name in TRAIN}
    aggregation = Options(protocol=aggregate, warmup=0, **options)
    asked = TrainOptions(algorithm, aggregation, local, **training)
    world = connect()

    def progress(index: int, result: RoundResult) -> None:
        if index == 0:
            click.echo(" round  accuracy     loss  sent up, MB  round, s  training, s  modelled, s")
        figures = result.figures
        click.echo(
            f"{index:6}  {figures['accuracy']:8.4f}  {figures['loss']:7.4f}"
            f"  {figures['bytes_up_total'] / 1e6:11.3f}  {result.record.round_seconds:8.3f}"
            f"  {figures['train_seconds']:11.3f}  {figures['modelled_seconds']:11.3f}"
        )

    if as_json:
        trained = session.run(world, asked, devices, output)
    else:
        trained = session.run(world, asked, devices, output, progress)
    if trained is None:
        return
    rounds = [result.figures for result in trained.results]
    if as_json:
        import json

        plain = [
            {name: None if math.isnan(value) else value for name, value in figures.items()}
            for figures in rounds
        ]
        click.echo(json.dumps({"path": str(trained.path), "rounds": plain}, indent=2))
        return
    modelled = sum(figures["modelled_seconds"] for figures in rounds)
    click.echo(
        f"\n{trained.model}, {trained.weights.size} parameters: accuracy "
        f"{rounds[-1]['accuracy']:.4f} after {len(rounds)} rounds, all aggregates validated\n"
        f"sent up by all devices: {rounds[-1]['bytes_up_total'] / 1e6:.3f} MB\n"
        f"modelled: {modelled:.1f} s, training included"
    )
    if not math.isnan(rounds[-1]["clipped_fraction"]):
        clipped = max(figures["clipped_fraction"] for figures in rounds)
        error = max(figures["quantisation_error"] for figures in rounds)
        click.echo(
            f"clipped: at most {clipped:.2%} of the values of a round; "
            f"quantisation error of a coordinate: at most {error:.2e} (root mean square)"
        )
    if not math.isnan(rounds[-1]["overlap"]):
        click.echo(
            f"coordinates that a pair of devices has in common: {rounds[0]['overlap']:.1%} in the "
            f"first round, {rounds[-1]['overlap']:.1%} in the last"
        )
    click.echo(f"\nResults: {trained.path}")
