"""``hpcfl privacy``: what a protocol hides and what training costs in privacy."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.algorithms.federated import PRIVATE, find_private
from hpcfl.cli.options import Command, Group, Subjects, given, option, options
from hpcfl.cli.terminal import alone, json_option, progress_bar, show
from hpcfl.errors import UsageError
from hpcfl.options.definition import Option, Section
from hpcfl.options.exposure import ExposureOptions


@click.group("privacy", cls=Group)
def command() -> None:
    """Say what a protocol hides, what it exposes, and what training costs in privacy."""


@command.command("exposure")
@click.argument("protocol")
@options(ExposureOptions)
@json_option("Print the figures as JSON.")
@alone
def exposure(as_json: bool, **typed: Any) -> None:
    """Show what a round of PROTOCOL, or MODULE:CLASS of your own, exposes.

    The server follows the protocol, but is curious, and so are the devices that collude with it.
    At each coordinate they learn the sum over every connected component of the masking graph. A
    value that an honest device sends is hidden only within its component, its anonymity set.

    Every figure is given by formula, where one is known, and by a simulation of the graph, with
    half the width of its 95 % confidence interval.

    \b
    Examples:
      hpcfl privacy exposure sparse --devices 1000 --alpha 0.2 --dropout 0
      hpcfl privacy exposure secagg-graph --devices 1000 --degree 40
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
    """Return the command that keeps the account of an algorithm; its settings are the options."""
    kind = find_private(name).account

    @click.command(name, cls=Command, short_help=f"The account of {name}.")
    @options(kind)
    @option("--epsilon", metavar="EPSILON", section=Section.PRIVACY, help="The target.")
    @json_option()
    @alone
    def account(as_json: bool, epsilon: str | None, **typed: Any) -> None:
        """Show what training costs with --sigma, or the noise with which it costs an --epsilon.

        paper is what the algorithm's paper claims, proven is what holds for the algorithm as
        declared, under the assumptions listed.
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


@command.group("epsilon", cls=Subjects, names=PRIVATE, make=_account)
def epsilon() -> None:
    """Show what training by an algorithm costs, or find the noise for an epsilon.

    The algorithm is one of these, or MODULE:CLASS of your own. With --epsilon in place of --sigma,
    the noise is found once by the paper's value and once by the proven value.

    \b
    Examples:
      hpcfl privacy epsilon cdp --sigma 0.01353 --rounds 20 --devices 16 \\
          --per-round 10 --batch-size 32 --samples 2441 --steps 10 --delta 1e-4 \\
          --convex --shuffle continuing
      hpcfl privacy epsilon dp-fedavg --sigma 1.32 --rounds 100 --devices 100 \\
          --per-round 20
      hpcfl privacy epsilon dp-fedavg --epsilon 8 --rounds 100 --devices 1000 \\
          --per-round 50
      hpcfl privacy epsilon locks --variant local --sigma 10 --rounds 100 \\
          --devices 100 --first-stage 30 --per-round 20 --replies 40
      hpcfl privacy epsilon fedsgd-dpc --epsilon 1 --mechanism gaussian \\
          --fraction 0.01 --rounds 500 --devices 10 --per-round 5 --samples 6000
    """
