"""``hpcfl doctor``: whether everything that hpcfl needs is there and works."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpcfl.cli.options import Command, option
from hpcfl.cli.terminal import json_option
from hpcfl.errors import UsageError

RESULTS = Path("results")  # where they are written unless --output says otherwise


@click.command("doctor", cls=Command)
@option("--fix", is_flag=True, help="Let the embedded mpirun start more ranks than cores.")
@json_option("Print the findings as JSON.")
def command(fix: bool, as_json: bool) -> None:
    """Check MPI and everything else that hpcfl needs, and say what to do.

    The exit status is 0 if there is no problem; warnings do not count.
    """
    from hpcfl.system import doctor, launch
    from hpcfl.system.mpiconfig import allow_oversubscription

    if (launch.guess_size() or 1) > 1:
        raise UsageError("hpcfl doctor starts mpirun by itself: call it without a launcher")
    if fix:
        changed = allow_oversubscription(Path(sys.prefix))
        for path in changed:
            click.echo(f"fixed: {path}", err=as_json)
        if not changed:
            click.echo("nothing to fix: mpirun's settings are made", err=as_json)
    checks = []
    for check in doctor.examine(RESULTS):
        checks.append(check)
        if not as_json:
            click.echo(f"{check.status:<8} {check.name:<17} {check.found}")
    problems = sum(check.status == doctor.PROBLEM for check in checks)
    if as_json:
        found = {"problems": problems, "checks": [vars(check) for check in checks]}
        click.echo(json.dumps(found, indent=2))
    else:
        remedies = [check for check in checks if check.remedy]
        click.echo("\nTo do:" if remedies else "\nEverything is as it should be.")
        for number, check in enumerate(remedies, 1):
            click.echo(f"  {number}. {check.name}: {check.remedy}")
    if problems:
        sys.exit(1)
