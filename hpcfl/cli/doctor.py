"""``hpcfl doctor``: whether everything that hpcfl needs is there and works."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpcfl.cli.options import PLACE, Command, option
from hpcfl.cli.terminal import json_option


@click.command("doctor", cls=Command)
@option("--fix", is_flag=True, help="Let the embedded mpirun start more ranks than cores.")
@json_option("Print the findings as JSON.")
@option(
    "--results",
    type=PLACE,
    default=Path("results"),
    help="Folder in which results will be written.",
)
def command(fix: bool, as_json: bool, results: Path) -> None:
    """Check MPI and everything else that hpcfl needs, and say what to do.

    The exit status is 0 if there is no problem; warnings do not count.
    """
    from hpcfl.system.doctor import examination
    from hpcfl.system.doctor.check import PROBLEM

    fixed = _fix() if fix else []
    if not as_json:
        for line in fixed:
            click.echo(line)
    checks = []
    for check in examination.examine(results):
        checks.append(check)
        if not as_json:
            click.echo(examination.render_line(check))
    problems = sum(check.status == PROBLEM for check in checks)
    if as_json:
        found = {"problems": problems, "fixed": fixed, "checks": [vars(check) for check in checks]}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"\n{examination.render_remedies(checks) or 'Everything is as it should be.'}")
    if problems:
        sys.exit(1)


def _fix() -> list[str]:
    """Change what can be changed; return what was done, or why nothing was, in sentences."""
    from hpcfl.errors import UsageError
    from hpcfl.system.mpiconfig import allow_oversubscription

    try:
        changed = allow_oversubscription(Path(sys.prefix))
    except UsageError as error:
        return [f"not fixed: {error}"]
    return [f"fixed: {path}" for path in changed] or ["nothing to fix: mpirun's settings are made"]
