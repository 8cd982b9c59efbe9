"""`hpcfl compare`: whether one configuration is slower than another, and by how much."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.cli.options import Command, given, option, options
from hpcfl.cli.terminal import alone, json_option, show, warn
from hpcfl.options.compare import CompareOptions
from hpcfl.options.definition import make

SLOWER_STATUS = 3


def _share(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return a share in per cent or as a fraction below 1: 5 could mean 5 % or five times."""
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < (float("inf") if value.endswith("%") else 1):
        raise click.BadParameter(f"{value!r} is not a share like 5% or 0.05", context, param)
    return share


@click.command("compare", cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options(CompareOptions)
@option(
    "--fail-if-slower",
    callback=_share,
    metavar="PERCENT",
    help="Exit with status 3 if B is slower (or larger) than A by more than this share: if the "
    "whole interval of the ratio lies above it.",
)
@json_option("Print everything as JSON.")
@alone
def command(a: str, b: str, fail_if_slower: float | None, as_json: bool, **typed: Any) -> None:
    """Compare the measured rounds of B with those of A.

    A and B are results files, or folders with several launches of one configuration, which are
    pooled. Medians, their difference and ratio come with rank-based intervals, and a rank test says
    whether there is a difference to be seen. Bytes that are the same in all rounds are compared
    exactly.

    \b
    Examples:
      hpcfl compare before.h5 after.h5
      hpcfl compare main/ branch/ --fail-if-slower 5%
      hpcfl compare secagg.h5 sparse.h5 --metric bytes_up
    """
    from hpcfl import api
    from hpcfl.results import comparison

    asked = make(CompareOptions, given(typed))
    found = api.compare(api.load_many(a), api.load_many(b), **vars(asked))
    slower = fail_if_slower is not None and found.exceeds(fail_if_slower)
    for sentence in comparison.remarks(found):
        warn(sentence)
    limit = {} if fail_if_slower is None else {"limit": fail_if_slower, "slower_than_limit": slower}
    show(
        as_json,
        lambda: found.as_dict() | {"sentence": comparison.verdict(found)} | limit,
        found.table().text,
    )
    if slower and fail_if_slower is not None:
        click.echo(f"B is beyond the limit of {100 * fail_if_slower:g} %", err=True)
        raise SystemExit(SLOWER_STATUS)
