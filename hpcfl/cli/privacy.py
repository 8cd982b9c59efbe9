"""Commands about privacy: `hpcfl privacy`, `hpcfl optimize` and `hpcfl attack`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.algorithms.federated import PRIVATE, find_private
from hpcfl.audit.instance import Instance, default
from hpcfl.cli.options import Command, Group, given, options
from hpcfl.cli.terminal import alone, json_option, progress_bar, show
from hpcfl.errors import HpcflError, UsageError
from hpcfl.options.boost import BoostOptions
from hpcfl.options.definition import Option, make
from hpcfl.options.exposure import ExposureOptions


@click.group("privacy", cls=Group)
def privacy() -> None:
    """Say what a protocol hides, what it exposes, and what training costs in privacy."""


@privacy.command("exposure")
@click.argument("protocol")
@options(ExposureOptions)
@json_option
@alone
def exposure(as_json: bool, **typed: Any) -> None:
    """Show what a round of PROTOCOL, or of your own MODULE:CLASS, exposes.

    The server and the devices that collude with it follow the protocol, but are curious. At each
    coordinate they learn the sum over every connected component of the masking graph. A value of
    an honest device is hidden only within its component, its anonymity set.

    Every figure is shown by formula, if one is known, and by a simulation of the graph, with half
    the width of its 95 % confidence interval.

    \b
    Examples:
      hpcfl privacy exposure sparse --devices 1000 --alpha 0.2 --dropout 0
      hpcfl privacy exposure sparse --gamma 1/4 --json > exposure.json
    """
    from hpcfl import api
    from hpcfl.privacy.exposure import default_samples, render

    asked = {"devices": 100, **given(typed)}
    samples = default_samples(int(asked["devices"]))
    with progress_bar(samples, asked["protocol"]) as bar:
        found = api.exposure(**asked, progress=bar.update)
    show(as_json, found.as_dict, lambda: render(found))


def _account(name: str) -> click.Command:
    """Return the command for an algorithm's privacy account, whose settings are its options."""
    kind = find_private(name).account

    @click.command(name, cls=Command, short_help=f"The account of {name}.")
    @options(kind)
    @click.option("--epsilon", metavar="EPSILON", help="The target.")
    @json_option
    @alone
    def account(as_json: bool, epsilon: str | None, **typed: Any) -> None:
        """Show the epsilon of training with --sigma, or the noise for an --epsilon.

        'paper' is the claim of the algorithm's paper. 'proven' holds for the algorithm as
        declared, under the listed assumptions.
        """
        from hpcfl.privacy.accounting.tables import render_account, render_noise

        settings = given(typed)
        if (epsilon is None) == ("sigma" not in settings):
            raise UsageError("give either --sigma or --epsilon")
        if epsilon is None:
            one = kind.of(**settings)
            show(as_json, one.as_dict, lambda: render_account(one))
            return
        target = Option("", name="epsilon", type=float).read(epsilon)
        found = kind.with_epsilon(target, **settings)
        show(
            as_json,
            lambda: {"epsilon": target, "noise": {by: one.as_dict() for by, one in found.items()}},
            lambda: render_noise(target, found),
        )

    return account


class _Algorithms(Group):
    """A command for each private algorithm or MODULE:CLASS; only the algorithm used is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*PRIVATE]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _account(name)


@privacy.group("epsilon", cls=_Algorithms)
def epsilon() -> None:
    """Show the epsilon of training by an algorithm, or find the noise for an epsilon.

    The algorithm is one of these, or your own as MODULE:CLASS. With --epsilon instead of --sigma,
    the noise is found once for the paper's epsilon and once for the proven epsilon.

    \b
    Examples:
      hpcfl privacy epsilon cdp --sigma 0.01353 --rounds 20 --devices 16 \\
          --per-round 10 --batch-size 32 --samples 2441 --steps 10 --convex
      hpcfl privacy epsilon dp-fedavg --epsilon 8 --rounds 100 --devices 1000 \\
          --per-round 50
    """


@click.group("optimize", cls=Group)
def optimize() -> None:
    """Find the best settings for training with noise."""


@optimize.command("fedsgd-dpc")
@click.argument("constants", type=Path, metavar="CONSTANTS.json")
@click.option(
    "--epsilon", type=float, default=1.0, help="Privacy budget of a device for all its replies."
)
@json_option
@alone
def fedsgd_dpc(constants: Path, epsilon: float, as_json: bool) -> None:
    """Find the best numbers of queries and replies of FedSGD-DPC: T rounds of b devices.

    U(T, b) bounds the squared distance of the trained model from the best one. The command finds T
    and b with the least bound, by the paper's formulas and among whole numbers. The paper counts
    T b / N replies of a device. For whole numbers, the command counts the replies of the device
    that replies most, as the noise of a run depends on it. T = 0 means that no training is better
    than the start.

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


@click.group("attack", cls=Group)
def attack() -> None:
    """Play the curious server, or a hostile device."""


@attack.command("components")
@click.argument("transcript", type=click.Path(path_type=Path))
@click.option(
    "--protocol",
    metavar="MODULE:CLASS",
    help="Class of the round's protocol, if it does not come with hpcfl.",
)
@json_option
@alone
def components(transcript: Path, protocol: str | None, as_json: bool) -> None:
    """Recover single values from the messages of a round in TRANSCRIPT.

    The server followed the protocol. It reconstructs the secrets that it needs to unmask the sum,
    and removes every mask that it or a colluding device knows from each upload. It recognises
    values without a remaining mask because they are small. The command compares them with the true
    values, and their number with the prediction.

    \b
    Examples:
      hpcfl bench sparse --rounds 1 --warmup 0 --gamma 0.33 \\
          --insecure-seed 1 --keep-transcript round.npz
      hpcfl attack components round.npz
    """
    from hpcfl.attack import components as of_components
    from hpcfl.attack.transcript import load

    held = load(transcript, protocol)
    try:
        found = of_components.attack(held)
    except HpcflError as error:
        raise HpcflError(f"{transcript}: {error}") from None
    show(as_json, found.as_dict, found.render)
    if not found.agrees:
        raise HpcflError(
            f"{found.unmasked} values have no mask left, but {found.prediction.count:.6g} are "
            "predicted: they differ by more than chance"
        )


@attack.command("audit")
@click.argument("algorithm")
@click.option(
    "--runs", type=click.IntRange(20), default=5000, help="Runs on each dataset.", show_default=True
)
@click.option("--seed", type=int, default=0, help="Seed of all randomness.", show_default=True)
@options(Instance, defaults=False)
@json_option
@alone
def audit(algorithm: str, runs: int, seed: int, as_json: bool, **typed: Any) -> None:
    """Measure the privacy of ALGORITHM's noise: a lower bound on epsilon.

    ALGORITHM is cdp, dp-dsgd, dp-fedavg, fedsgd-dpc, or your own as MODULE:CLASS.

    A small instance runs many times on each of two neighbouring datasets. They differ in a record
    or user with the longest gradient that clipping allows. The success at telling the runs apart
    gives a lower bound on epsilon, to compare with the paper's claim and the proven value. Each
    algorithm has its own instance; options change it.

    \b
    Examples:
      hpcfl attack audit cdp
      hpcfl attack audit fedsgd-dpc --mechanism laplace --samples 1 \\
          --sigma 0.5 --devices 4
    """
    from hpcfl.audit.measure import audit as measure

    instance = default(algorithm, **given(typed))
    with progress_bar(2 * runs, algorithm) as bar:
        found = measure(instance, runs, seed, progress=bar.update)
    show(as_json, found.as_dict, found.render)
    if not found.agrees:
        raise HpcflError(
            f"the measured epsilon is at least {found.best:.6g}, but the proven one is "
            f"{found.proven:.6g}: there is less noise than the account assumes"
        )


@attack.command("boost")
@options(BoostOptions)
@json_option
@alone
def boost(as_json: bool, **typed: Any) -> None:
    """Let one device send minus its update, times a factor, in a training.

    The training is repeated without the attack. C is 1, the default of --clip-norm in train. With
    pine, devices that send longer vectors are refused.

    \b
    Examples:
      hpcfl attack boost --dataset mnist --data-dir data
      hpcfl attack boost --dataset mnist --data-dir data --aggregate pine
    """
    from hpcfl.audit import boost as attacking

    asked = make(BoostOptions, given(typed))
    with progress_bar(2 * asked.rounds, asked.aggregate) as bar:
        found = attacking.boost(asked, bar.update)
    show(as_json, found.as_dict, found.render)
