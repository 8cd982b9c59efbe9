"""``hpcfl privacy``: what a protocol hides and what training costs in privacy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import click

from hpcfl.cli.options import Group, given, options, same
from hpcfl.cli.terminal import alone, json_option, progress_bar, show
from hpcfl.errors import UsageError
from hpcfl.options.accounting import AccountOptions
from hpcfl.options.definition import READERS, check_needed, make
from hpcfl.options.exposure import ExposureOptions
from hpcfl.options.privacy import PrivacyOptions

if TYPE_CHECKING:
    from hpcfl.privacy.accounting.account import Account


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
      hpcfl privacy exposure sparse
      hpcfl privacy exposure sparse --devices 1000 --alpha 0.2 --dropout 0 \\
          --gamma 1/4
      hpcfl privacy exposure cohort --floor 2
      hpcfl privacy exposure secagg-graph --devices 1000 --degree 40
      hpcfl privacy exposure sparse --colluding 0 --json > exposure.json
    """
    from hpcfl.algorithms.aggregation import find
    from hpcfl.options.shared import RoundOptions, check_length
    from hpcfl.privacy.exposure import default_samples, render
    from hpcfl.privacy.exposure import exposure as find_exposure
    from hpcfl.privacy.population import Population
    from hpcfl.rounds import usage
    from hpcfl.rounds.build import without_dropouts

    wanted = given(typed)
    check_length(wanted)
    asked = make(ExposureOptions, without_dropouts(typed["protocol"], wanted))
    dim = asked.dim
    if asked.model is not None:
        from hpcfl.learning.models import parameters

        dim = parameters(asked.model)
    kind = find(asked.protocol)
    # Who colludes and who drops out is asked of every protocol.
    of_masks = {name: wanted.get(name) for name in ("alpha", "degree")}
    used = usage.of_protocol(asked.protocol, RoundOptions())
    usage.check(of_masks, asked.protocol, RoundOptions(), used)
    if asked.dropout and not kind.tolerates_dropouts:
        raise UsageError(f"{kind.name} refuses rounds with dropouts: give --dropout 0")
    population = Population(asked.devices, asked.colluders, asked.dropout, asked.dropout_model)
    masking = kind.masking(asked.devices, asked.alpha, asked.degree)
    samples = asked.simulated or default_samples(asked.devices)
    with progress_bar(samples, kind.name) as bar:
        found = find_exposure(
            kind.name,
            masking,
            population,
            dim=dim,
            floor=asked.floor or 1,
            samples=samples,
            seed=asked.seed,
            progress=bar.update,
        )
    show(as_json, found.as_dict, lambda: render(found))


def settings_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of all algorithms, those of one's own algorithm, and --json."""
    function = click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="")(function)
    function = json_option()(function)
    return options(AccountOptions)(function)


def _settings(
    account: type[Account], typed: dict[str, Any], more: tuple[str, ...]
) -> dict[str, Any]:
    """Return the settings that were given; refuse strange and missing ones by option name.

    `more` is what the command has no option for: those of an algorithm of one's own. Texts are
    read as the types of the account's fields.
    """
    hints = get_type_hints(account)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(account)}
    own = [click.Option([_dashed(name)]) for name in fields.keys() - typed.keys()]
    # With the others click knows what may be meant; that a required one is there it knows already.
    others = [one for one in click.get_current_context().command.params if not one.required]
    params: list[click.Parameter] = [
        *own,
        *(one for one in others if isinstance(one, click.Option)),
    ]
    with click.Command("privacy", params=params).make_context("privacy", [*more]) as context:
        found = {str(one.name): context.params[str(one.name)] for one in own}
    given = {name: value for name, value in (typed | found).items() if value is not None}
    read = {name: _read(name, fields.get(name, str), value) for name, value in given.items()}
    known = dataclasses.fields(account)
    defaults = {one.name: one.default for one in known if one.default is not dataclasses.MISSING}
    check_needed(AccountOptions, SimpleNamespace(**defaults | read), read)
    return read


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a setting of some type, or None, from the text that was typed."""
    parts = get_args(hint)
    (kind,) = {*parts} - {type(None)} if type(None) in parts else {hint}
    what, reader = READERS.get(kind, READERS[str])
    try:
        return reader(value)
    except (TypeError, ValueError):
        shown = repr(_dashed(name))
        raise click.BadParameter(f"{value!r} is not {what}", param_hint=shown) from None


@command.command("epsilon", context_settings={"ignore_unknown_options": True})
@click.argument("algorithm")
@same(
    PrivacyOptions,
    "sigma",
    "Noise on a coordinate, in the units of --clip-norm: its standard deviation (or Laplace "
    "scale) on a mini-batch's mean gradient (cdp, dp-dsgd, fedsgd-dpc), on the sum of updates "
    "(dp-fedavg), on an update (locks).",
    type=float,
)
@settings_options
@alone
def epsilon(algorithm: str, as_json: bool, more: tuple[str, ...], **options: Any) -> None:
    """Show what training by ALGORITHM costs: cdp, dp-dsgd, dp-fedavg, locks or fedsgd-dpc.

    Or by MODULE:CLASS of your own, whose settings are options likewise.

    paper is what the algorithm's paper claims, proven is what holds for the algorithm as declared,
    under the assumptions listed.

    \b
    Examples:
      hpcfl privacy epsilon cdp --sigma 0.01353 --rounds 20 --devices 16 \\
          --per-round 10 --batch-size 32 --samples 2441 --steps 10 --delta 1e-4 \\
          --convex --shuffle continuing
      hpcfl privacy epsilon dp-fedavg --sigma 1.32 --rounds 100 --devices 100 \\
          --per-round 20
      hpcfl privacy epsilon dp-fedavg --sigma 1.32 --rounds 10 --devices 100 \\
          --per-round 20 --noise distributed --honest 12 --unit 1e6 --dim 7850
      hpcfl privacy epsilon locks --variant local --sigma 10 --rounds 100 \\
          --devices 100 --first-stage 30 --per-round 20 --replies 40
      hpcfl privacy epsilon fedsgd-dpc --sigma 0.05 --rounds 50 --devices 10 \\
          --per-round 3 --samples 6000 --json
    """
    from hpcfl.algorithms.federated import find_private
    from hpcfl.privacy.accounting.tables import render_account

    kind = find_private(algorithm).account
    found = kind.of(**_settings(kind, options, more))
    show(as_json, found.as_dict, lambda: render_account(found))


@command.command("noise", context_settings={"ignore_unknown_options": True})
@click.argument("algorithm")
@same(PrivacyOptions, "epsilon", "The target.", type=float, required=True)
@settings_options
@alone
def noise(
    algorithm: str, epsilon: float, as_json: bool, more: tuple[str, ...], **options: Any
) -> None:
    """Find the noise with which ALGORITHM costs an epsilon.

    Once by the paper's value, and once by the proven value; and both values at each. What is found
    is --sigma of `hpcfl privacy epsilon`; noise set by other options stays as it is.

    \b
    Examples:
      hpcfl privacy noise cdp --epsilon 10 --rounds 50 --devices 16 \\
          --per-round 10 --batch-size 32 --samples 2441 --steps 5 --delta 1e-4
      hpcfl privacy noise dp-fedavg --epsilon 8 --rounds 100 --devices 1000 \\
          --per-round 50
      hpcfl privacy noise fedsgd-dpc --epsilon 1 --mechanism gaussian \\
          --fraction 0.01 --rounds 500 --devices 10 --per-round 5 --samples 6000 \\
          --json
    """
    from hpcfl.algorithms.federated import find_private
    from hpcfl.privacy.accounting.tables import render_noise

    kind = find_private(algorithm).account
    found = kind.with_epsilon(epsilon, **_settings(kind, options, more))
    show(
        as_json,
        lambda: {"epsilon": epsilon, "noise": {by: one.as_dict() for by, one in found.items()}},
        lambda: render_noise(epsilon, found),
    )
