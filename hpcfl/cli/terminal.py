"""What several commands do in a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from hpcfl.system import launch

Command = Callable[..., Any]


def json_option(help: str = "Print JSON.") -> Callable[[Command], Command]:
    """Return a decorator that gives a command --json; see `show`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def alone(command: Command) -> Command:
    """Let rank 0 alone run a command, where mpirun started it all the same."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        return None if launch.leave_to_first_rank() else command(*arguments, **options)

    return run


def show(as_json: bool, document: Callable[[], Any], text: Callable[[], str]) -> None:
    """Print an answer, as JSON or as text."""
    if as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps(document()))
    else:
        click.echo(text())


def progress_bar(length: int, label: str = "") -> Any:
    """Return a progress bar, which nobody sees where nobody looks."""
    # What is not a terminal shows no bar; the label that it would get is dropped here.
    stream = launch.terminal_for_progress() or io.StringIO()
    return click.progressbar(length=length, label=label, file=stream)
