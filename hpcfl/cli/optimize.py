"""``hpcfl optimize``: settings under which training with noise does best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcfl.errors import HpcflError, UsageError

if TYPE_CHECKING:
    from hpcfl.comm.world import World
    from hpcfl.optimize.estimate import Estimate
    from hpcfl.optimize.question import Question

# Constants that have an option: its type, its help, and its short name.
CONSTANTS: dict[str, tuple[type, str, str | None]] = {
    "dim": (int, "Number p of parameters.", None),
    "samples": (int, "Number d of samples on all devices together.", None),
    "gradient_norm": (float, "G: l2 norm that no device's gradient exceeds.", "--g"),
    "smoothness": (float, "lambda: smoothness of the loss.", "--lambda"),
    "convexity": (float, "mu: strong convexity of the loss.", "--mu"),
    "heterogeneity": (float, "Gamma: F* less the mean of the devices' least losses.", None),
    "distance": (float, "Y0: squared distance of the start from the best model.", None),
    "variance": (float, "Lambda^2: variance of a sample's gradient (gaussian).", None),
}


def _constant_options(function: Any) -> Any:
    for name, (kind, text, short) in reversed(CONSTANTS.items()):
        names = [f"--{name.replace('_', '-')}", *([short] if short else [])]
        function = click.option(*names, name, type=kind, help=text)(function)
    return function


@click.group("optimize")
def command() -> None:
    """Find settings under which training with noise does best."""


@command.command("fedsgd-dpc")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Number N of devices.  [default: that of --constants; with --dataset, one on every rank "
    "but the server's, or 100 in one process]",
)
@click.option(
    "--epsilon",
    default="1",
    show_default=True,
    metavar="EPS[,EPS...]",
    help="Budget of a device for all its replies: one for all devices, or one each.",
)
@click.option(
    "--mechanism",
    type=click.Choice(["laplace", "gaussian"]),
    default="laplace",
    show_default=True,
    help="The noise.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Also find the best b for this T.")
@click.option("--per-round", type=click.IntRange(min=1), help="Also find the best T for this b.")
@click.option(
    "--max-rounds",
    type=click.IntRange(min=1),
    help="T at the most.  [default: 500 with Gaussian noise, else no limit]",
)
@click.option(
    "--constants",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Constants of the bound, as --save-constants writes them; options go before.",
)
@_constant_options
@click.option(
    "--xi",
    type=float,
    help="Norm to which a sample's gradient is clipped: l1 (laplace) or l2 (gaussian). With "
    "--dataset it is the largest gradient norm found, if that is less.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta (gaussian).")
@click.option(
    "--fraction",
    type=float,
    default=1.0,
    show_default=True,
    help="Part q of its samples that a reply uses (gaussian).",
)
@click.option("--c2", type=float, default=1.0, show_default=True, help="Of Theorem 2 (gaussian).")
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "fixed"]),
    default="poisson",
    show_default=True,
    help="How a reply samples, and so which data are neighbours: with one record more (poisson), "
    "or with one replaced (fixed) (gaussian).",
)
@click.option(
    "--dataset",
    type=click.Choice(["digits", "synthetic", "mnist", "cifar10", "adult", "femnist"]),
    help="Estimate the constants from these data; not differentially private.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder of the data sets.  [default: $HPCFL_DATA]",
)
@click.option("--model", help="Model, or MODULE:FUNCTION.  [default: one for the data set]")
@click.option(
    "--partition",
    default="iid",
    show_default=True,
    help="iid, shards, two-digit, dirichlet:A or writer.",
)
@click.option(
    "--estimate-steps",
    type=int,
    default=200,
    show_default=True,
    help="Full-batch steps of every device for the estimate.",
)
@click.option(
    "--learning-rate",
    type=float,
    default=0.05,
    show_default=True,
    help="Of the first of these steps; it falls with the root of their number.",
)
@click.option(
    "--torch-device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where devices train for the estimate.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--save-constants",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Also write the constants to a file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Also draw U against T for several b: .png, .svg or .pdf.",
)
def fedsgd_dpc(
    dataset: str | None,
    as_json: bool,
    plot: Path | None,
    save_constants: Path | None,
    **options: Any,
) -> None:
    """Find how often FedSGD-DPC should query and reply: T* rounds of b* devices.

    U(T, b) bounds the squared distance of the trained model from the best one. T* and b* are where
    it is least, by the formulas of the paper and among whole numbers. The paper counts T b / N
    replies of a device; whole replies counts those of the device that replies most, which is the
    noise that a run needs. T of 0 means that no training beats the start.

    \b
    Examples:
      hpcfl optimize fedsgd-dpc --devices 10 --epsilon 1 --constants mnist.json
      hpcfl optimize fedsgd-dpc --devices 10 --dim 7840 --samples 60000 --g 18 --xi 300 \\
          --lambda 1.05 --mu 1 --heterogeneity 0.5 --distance 600 --per-round 5 --plot bound.png
      mpirun -n 11 hpcfl optimize fedsgd-dpc --dataset mnist --model softmax \\
          --partition two-digit --xi 300 --epsilon 10 --save-constants mnist.json
      hpcfl optimize fedsgd-dpc --mechanism gaussian --constants mnist.json --xi 10 \\
          --fraction 0.01 --rounds 500 --json
    """
    from hpcfl.comm.world import connect
    from hpcfl.optimize import constants
    from hpcfl.optimize.question import Question

    if plot is not None:
        from hpcfl.plots import style

        style.check_path(plot)
    names = ("mechanism", "rounds", "per_round", "max_rounds", "delta", "fraction", "c2")
    question = Question(
        _epsilons(options["epsilon"]),
        sampling=options["sampling"],
        **{name: options[name] for name in names},
    )
    if dataset is not None and options["file"] is not None:
        raise UsageError("--constants and --dataset both say the constants: give one of them")
    # Read before the estimate, which can take long; the same on every rank.
    given = {} if options["file"] is None else constants.read(options["file"])
    given |= {name: options[name] for name in CONSTANTS if options[name] is not None}
    clip = {} if options["xi"] is None else {question.clip_name: options["xi"]}
    world = connect()
    estimate = None
    if dataset is not None:
        estimate = _estimate(world, dataset, options, clip)
    else:
        given |= clip
        if options["devices"] is not None:
            given["devices"] = options["devices"]
    error = None
    if world.rank == 0:
        try:
            _answer(question, given, estimate, save_constants, as_json, plot)
        except HpcflError as problem:
            error = problem
    # The other ranks learn of an error: a rank that ends alone would leave the job hanging.
    world.settle(error)


def _epsilons(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--epsilon {text!r} is not a number: give one, or one for each device as in 1,1,5"
        ) from None


def _estimate(
    world: World, dataset: str, options: dict[str, Any], clip: dict[str, Any]
) -> Estimate | None:
    from hpcfl.optimize import estimate

    settings = estimate.EstimateOptions(
        dataset=dataset,
        **{name: options[name] for name in ("partition", "model", "data_dir", "seed")},
        steps=options["estimate_steps"],
        learning_rate=options["learning_rate"],
        torch_device=options["torch_device"],
        **clip,
    )
    return estimate.run(world, settings, options["devices"])


def _answer(
    question: Question,
    given: dict[str, Any],
    estimate: Estimate | None,
    save_constants: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Print what is found, draw it, and save the constants."""
    from hpcfl.optimize import answer, constants

    if estimate is not None:
        from hpcfl.optimize.estimate import WARNING

        click.echo(WARNING, err=True)
        given = estimate.constants.as_dict() | given
    bound = question.bound(given)
    if save_constants is not None:
        constants.save(bound.constants, save_constants)
    found = answer.find(bound, question)
    if estimate is not None:
        found["estimate"] = estimate.as_dict()
    if as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps(found))
    else:
        from hpcfl.optimize.tables import render

        click.echo(render(found))
    if plot is not None:
        from hpcfl.optimize.figure import draw
        from hpcfl.plots import style

        style.save(draw(bound, question.most), plot)
        click.echo(f"Figure: {plot}", err=as_json)
