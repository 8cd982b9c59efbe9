"""`hpcfl compare`: whether one configuration is slower than another, and by how much."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.cli.options import Command, given, option, options
from hpcfl.cli.terminal import alone, json_option, show, warn
from hpcfl.options.compare import CompareOptions
from hpcfl.options.definition import make

SLOWER_STATUS = 3


class Share(click.ParamType):
    """A share of something, in per cent or as a fraction below 1."""

    name = "PERCENT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        # 5 could mean 5 % or five times.
        if not 0 <= share < (float("inf") if text.endswith("%") else 1):
            self.fail(f"{value!r} is not a share like 5% or 0.05", param, ctx)
        return share


@click.command("compare", cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options(CompareOptions)
@option(
    "--fail-if-slower",
    type=Share(),
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
    whether there is a difference to be seen. It takes launches for samples where those of a side
    differ more than their rounds do, else rounds, and says so. Bytes that are the same in all
    rounds are compared exactly.

    Exit status: 0 compared, 1 failed, 2 wrong use, 3 see --fail-if-slower.

    \b
    Examples:
      hpcfl compare before.h5 after.h5
      hpcfl compare main/ branch/ --fail-if-slower 5%
      hpcfl compare secagg.h5 sparse.h5 --metric bytes_up
      hpcfl compare main/ branch/ --by launches --json
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
