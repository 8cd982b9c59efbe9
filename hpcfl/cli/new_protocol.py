"""`hpcfl new-protocol`: a protocol of one's own to start from."""

from __future__ import annotations

from pathlib import Path

import click

from hpcfl.cli.options import Command, Output, argument, same
from hpcfl.cli.terminal import alone
from hpcfl.options.shared import RunOptions
from hpcfl.system.outputs import FOLDER


@click.command("new-protocol", cls=Command)
@argument("name")
@same(RunOptions, "output", "Folder for the files.", type=Output(FOLDER), default=".")
@alone
def command(name: str, output: Path) -> None:
    """Write NAME.py, a protocol to start from, and test_NAME.py, its test.

    The protocol is complete: pairwise masks against a curious server. Comments say what to change
    for one of your own. It runs with every command as NAME:CLASS, from the files' folder.

    \b
    Examples:
      hpcfl new-protocol my_sum
      pytest test_my_sum.py
      mpirun -n 4 hpcfl bench my_sum:MySum
      hpcfl train fedavg --aggregate my_sum:MySum --devices 10
    """
    import shlex

    from hpcfl import scaffold

    written = scaffold.write(name, output)
    called = f"{name}:{scaffold.class_name(name)}"
    steps = [] if output == Path() else [f"cd {shlex.quote(str(output))}"]
    steps += [f"pytest test_{name}.py", f"hpcfl bench {called} --devices 10"]
    steps.append(f"hpcfl train fedavg --aggregate {called} --devices 10")
    click.echo("\n".join([*map(str, written), "", "Next:", *(f"    {step}" for step in steps)]))
