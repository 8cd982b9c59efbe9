"""Search longer than the tests for a difference between the uploads of two vectors.

    python benchmarks/indistinguishability.py --count 100

Every repetition takes new keys and examines every protocol and group with the battery of
tests/campaigns/test_indistinguishable.py. The probability of any false alarm in all repetitions is
at most 1e-6.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "campaigns")]

FALSE_ALARM = 1e-6


@click.command(help=__doc__)
@click.option("--count", default=10, show_default=True, help="Repetitions.")
def main(count: int) -> None:
    from test_indistinguishable import (  # type: ignore[import-not-found]
        MASKED,
        alarms,
        look,
        look_at_locations,
    )

    configurations: list[tuple[Callable[..., dict[str, float]], tuple[str, ...]]] = [
        *((look, chosen) for chosen in MASKED),
        (look_at_locations, ()),
    ]
    smallest: dict[str, float] = {}
    alarmed = 0
    for _ in range(count):
        for see, arguments in configurations:
            found = see(*arguments)
            raised = alarms(found, FALSE_ALARM / len(configurations) / count)
            alarmed += len(raised)
            for name in sorted(raised):
                click.echo(f"{' '.join(arguments)}: {name}, p = {found[name]:.3g}")
            for name, p in found.items():
                kind = name.partition(",")[0]
                smallest[kind] = min(p, smallest.get(kind, 1.0))
    for kind, p in sorted(smallest.items()):
        click.echo(f"{kind:35} smallest p {p:8.2g}")
    click.echo(f"{alarmed} alarms")
    sys.exit(alarmed > 0)


if __name__ == "__main__":
    main()
