"""What several commands do in a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from hpcfl.cli.options import option
from hpcfl.errors import HpcflError, UsageError
from hpcfl.system import launch

if TYPE_CHECKING:
    from pathlib import Path

    from hpcfl.results.reader import Run

Command = Callable[..., Any]


def json_option(help: str = "Print the findings as JSON.") -> Callable[[Command], Command]:
    """Return a decorator that gives a command --json; see `show`."""
    return option("--json", "as_json", is_flag=True, help=help)


def footer_wanted(as_json: bool) -> bool:
    """Return whether lines for other programs end what is printed: they read no terminal."""
    return not as_json and not launch.output_is_watched()


def show_footer(path: Path) -> None:
    """Print the lines of a run for other programs; none if its file cannot be read."""
    from hpcfl.results.footer import footer
    from hpcfl.results.reader import load

    # What happened to the file is on its way out as another error.
    with suppress(HpcflError):
        click.echo(footer(load(path)))


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


def warn(sentence: str) -> None:
    """Print a warning, a sentence without a full stop, beside what a command prints."""
    click.echo(f"warning: {sentence}", err=True)


def usable_runs(
    files: Sequence[Path], objection: Callable[[Run], str | None], where: str | None = None
) -> tuple[list[Run], list[HpcflError]]:
    """Return the runs of results files that can be used, and warn of the others, and of doubts.

    With `where`, of those that it describes alone; see :func:`hpcfl.results.selection.select`.
    """
    from hpcfl.results.reader import load_usable

    runs, errors = load_usable(files, objection if where is None else lambda run: None)
    if where is not None:
        from hpcfl.results.selection import select

        reasons = {run.path: objection(run) for run in select(runs, where)}
        runs = [run for run in runs if run.path in reasons and reasons[run.path] is None]
        errors += [UsageError(f"{path} {why}") for path, why in reasons.items() if why is not None]
    for error in errors:
        warn(f"{error}; left out")
    for run in runs:
        if run.unfinished:
            warn(f"{run.path} {run.unfinished}")
    return runs, errors


def progress_bar(length: int, label: str = "") -> Any:
    """Return a progress bar, which nobody sees where nobody looks."""
    # What is not a terminal shows no bar; the label that it would get is dropped here.
    stream = launch.terminal_for_progress() or io.StringIO()
    return click.progressbar(length=length, label=label, file=stream)
