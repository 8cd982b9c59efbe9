"""`hpcfl completion`: what makes a shell complete the command line."""

from __future__ import annotations

import click

from hpcfl.cli.options import Choice, Command, argument
from hpcfl.cli.terminal import alone

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@argument("shell", type=Choice(*SHELLS))
@alone
def command(shell: str) -> None:
    """Print a script with which SHELL completes what is typed after hpcfl.

    Commands, options and their values, protocols, algorithms, models, phases, plans, columns, the
    papers' tables and figures, and files with the right ending.

    \b
    Examples:
      eval "$(hpcfl completion bash)"         here and now; or in ~/.bashrc
      hpcfl completion zsh > ~/.zfunc/_hpcfl  with ~/.zfunc in $fpath
      hpcfl completion fish > ~/.config/fish/completions/hpcfl.fish
    """
    from click.shell_completion import get_completion_class

    from hpcfl.cli import group

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(group, {}, "hpcfl", "_HPCFL_COMPLETE").source(), nl=False)
