"""`hpcfl train`: train a real model through an aggregation protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpcfl.algorithms.federated import REGISTRY
from hpcfl.cli.options import link_options, listing, output_option, protocol_options, seed_options
from hpcfl.train.presets import PRESETS

if TYPE_CHECKING:
    pass

LOCAL = (
    *("epochs", "steps", "batch_size", "learning_rate"),
    *("momentum", "decay", "weight_decay", "schedule"),
)
PRIVACY = (
    *("sigma", "noise_multiplier", "clip_norm", "epsilon", "epsilon_by", "delta"),
    *("mechanism", "noise", "shuffle", "convex", "quantile", "fast_noise"),
    *("first_stage", "variant", "sigma_norms"),
)
TRAIN = (
    *("dataset", "data_dir", "partition", "data_fraction", "model", "per_round", "sampling"),
    *("server_learning_rate", "server_momentum"),
    *("target_accuracy", "max_seconds", "torch_device", "checkpoint_every", "resume"),
    *("error_feedback", "device_loss"),
)


def _use_preset(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Let a preset's settings be the defaults of this call."""
    if name is not None:
        context.default_map = PRESETS[name]


def _default(context: click.Context, options: dict[str, Any], **values: Any) -> None:
    """Set options that are neither typed nor of a preset."""
    for name, value in values.items():
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            options[name] = value


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
@click.option(
    "--data-fraction",
    type=float,
    default=1.0,
    show_default=True,
    help="Part of its data that every device uses.",
)
@click.option("--model", help="Model, or MODULE:FUNCTION.  [default: one for the data set]")
@click.option("--rounds", type=int, default=100, show_default=True, help="Rounds at most.")
@click.option("--target-accuracy", type=float, help="Stop at this accuracy on held-out data.")
@click.option("--max-seconds", type=float, help="Stop after the round that passes this time.")
@click.option(
    "--per-round",
    type=click.IntRange(min=1),
    help="Devices that take part in a round.  [default: all]",
)
@click.option(
    "--sampling",
    type=click.Choice(["exact", "poisson", "balanced"]),
    default="exact",
    show_default="exact; balanced with noisy steps",
    help="That many devices drawn anew, each by chance, or that many in turn.",
)
@click.option("--epochs", type=int, help="Local epochs a round.  [default: 5, without --steps]")
@click.option("--steps", type=int, help="Local steps a round, instead of epochs.")
@click.option("--batch-size", type=int, default=28, show_default=True, help="0: all data.")
@click.option("--learning-rate", type=float, default=0.01, show_default=True)
@click.option("--momentum", type=float, default=0.5, show_default="0.5; 0 with noisy steps")
@click.option(
    "--decay", type=float, default=1.0, show_default=True, help="Of the learning rate, a round."
)
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option(
    "--schedule",
    type=click.Choice(["decay", "sqrt"]),
    default="decay",
    show_default=True,
    help="The learning rate is also divided by the root of the round's number, from 1 (sqrt).",
)
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
    "--sigma",
    type=float,
    help="Noise on a coordinate (Gaussian: standard deviation, Laplace: scale): of a mean gradient "
    "(cdp, dp-dsgd, fedsgd-dpc), of the sum of updates (dp-fedavg).",
)
@click.option("--noise-multiplier", type=float, help="The same in units of --clip-norm.")
@click.option(
    "--clip-norm",
    type=float,
    default=1.0,
    show_default=True,
    help="Norm to which a sample's gradient (an update, dp-fedavg) is clipped.",
)
@click.option(
    "--epsilon",
    type=float,
    help="Begin no round that would cost more. Without a given noise: the noise that makes all "
    "rounds cost this.",
)
@click.option(
    "--epsilon-by",
    type=click.Choice(["paper", "proven"]),
    default="proven",
    show_default=True,
    help="Whose epsilon that is.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option(
    "--mechanism",
    type=click.Choice(["gaussian", "laplace"]),
    default="gaussian",
    show_default=True,
    help="Kind of the noise, and norm that is clipped: l2 or l1 (fedsgd-dpc).",
)
@click.option(
    "--noise",
    type=click.Choice(["central", "distributed"]),
    default="central",
    show_default=True,
    help="Added by a trusted server, or by all devices, to their integers (dp-fedavg).",
)
@click.option(
    "--shuffle",
    type=click.Choice(["continuing", "fresh", "poisson"]),
    help="How a device goes through its data.  [default: continuing; poisson for fedsgd-dpc]",
)
@click.option(
    "--convex",
    is_flag=True,
    help="Declare that the learning rate is small enough for no local step to expand distances, "
    "which cdp's proof gains from; for linear models of two classes.",
)
@click.option(
    "--quantile",
    type=float,
    help="Adapt the clipping norm to this quantile of the updates' norms (dp-fedavg).",
)
@click.option(
    "--first-stage",
    type=click.IntRange(min=1),
    help="Users invited in a round, in expectation (locks).  [default: 3/2 of --per-round]",
)
@click.option(
    "--variant",
    type=click.Choice(["trusted", "local"]),
    default="trusted",
    show_default=True,
    help="Who adds the noise: a trusted server, or every user (locks).",
)
@click.option(
    "--sigma-norms",
    type=float,
    help="Noise on norms (locks).  [default: that on updates]",
)
@click.option(
    "--fast-noise",
    is_flag=True,
    help="Noise of a generator that is not cryptographic, and repeats itself for a seed.",
)
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
@listing(algorithms=REGISTRY)
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
      {algorithms}

    \b
    Examples:
      hpcfl train fedavg                                     digits, 100 devices, one process
      mpirun -n 3 hpcfl train fedavg --aggregate sparse --devices 100 --dataset mnist \\
          --data-dir data --target-accuracy 0.97
      mpirun -n 17 hpcfl train fedavg --aggregate secagg --dataset adult --partition dirichlet:0.5
      hpcfl train top-k --alpha 0.01 --error-feedback
      mpirun -n 3 hpcfl train fedavg --preset sparse-secagg-mnist --aggregate sparse --devices 25
      hpcfl train cdp --preset zcdp-adult-lr --epsilon 10 --convex
      hpcfl train dp-fedavg --aggregate secagg --noise distributed --noise-multiplier 1 --rounds 20
    """
    import math

    from hpcfl.algorithms.federated import find
    from hpcfl.algorithms.federated.privacy import PrivacyOptions
    from hpcfl.bench.experiment import Options
    from hpcfl.cli import watching
    from hpcfl.comm.world import connect
    from hpcfl.learning.training import LocalOptions
    from hpcfl.system.interruption import noting_signals
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
    kind = find(algorithm)
    if kind.noisy_steps:
        _default(context, options, momentum=0.0, sampling="balanced")
        if algorithm != "cdp":
            _default(context, options, steps=1, epochs=None)
        if options["mechanism"] == "laplace":
            _default(context, options, batch_size=0)
    if algorithm == "locks":
        _default(context, options, sampling="poisson")
    if options["shuffle"] is None:
        options["shuffle"] = "poisson" if algorithm == "fedsgd-dpc" else "continuing"
    local = LocalOptions(**{name: options.pop(name) for name in LOCAL})
    privacy = PrivacyOptions(**{name: options.pop(name) for name in PRIVACY})
    training = {name: options.pop(name) for name in TRAIN}
    aggregation = Options(protocol=aggregate, warmup=0, **options)
    asked = TrainOptions(algorithm, aggregation, local, privacy=privacy, **training)
    world = connect()
    if world.rank == 0 and aggregation.insecure_seed is not None:
        click.echo("Warning: --insecure-seed is given: keys are not secret.", err=True)

    with noting_signals(to_the_end=True):
        spoken = watching.Spoken() if as_json else watching.Rows(kind.private)
        trained = session.run(world, asked, devices, output, spoken)
    if trained is None:
        return
    rounds = [result.figures for result in trained.results]
    if as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps({"path": str(trained.path), "rounds": rounds}))
        return
    if not rounds:
        click.echo(
            f"no round is within epsilon {privacy.epsilon:g}: give more noise or a larger "
            f"--epsilon\n\nResults: {trained.path}"
        )
        return
    modelled = sum(figures["modelled_seconds"] for figures in rounds)
    click.echo(
        f"\n{trained.model}, {trained.weights.size} parameters: accuracy "
        f"{rounds[-1]['accuracy']:.4f} after {len(rounds)} rounds, all aggregates validated\n"
        f"sent up by all devices: {rounds[-1]['bytes_up_total'] / 1e6:.3f} MB\n"
        f"modelled: {modelled:.1f} s, training included"
    )
    if kind.private:
        pure = algorithm == "fedsgd-dpc" and privacy.mechanism == "laplace"
        click.echo(
            f"epsilon at delta {0 if pure else privacy.delta:g}: "
            f"{rounds[-1]['epsilon_paper']:.4g} as the paper counts, "
            f"{rounds[-1]['epsilon_proven']:.4g} proven "
            f"(neighbours: {trained.config['epsilon_neighbours']})"
        )
        for note in trained.notes:
            click.echo(f"  {note}")
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
