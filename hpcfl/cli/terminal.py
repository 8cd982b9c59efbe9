"""What several commands do in a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from hpcfl.system import launch

if TYPE_CHECKING:
    from pathlib import Path

    from hpcfl.errors import HpcflError
    from hpcfl.report.table import Table
    from hpcfl.results.reader import Run

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


def rendered(table: Table, form: str) -> str:
    """Return a table in a format: ``terminal``, ``markdown``, ``latex``, ``csv`` or ``json``."""
    return {
        "terminal": table.text,
        "markdown": table.markdown,
        "latex": table.latex,
        "csv": table.csv,
        "json": table.json,
    }[form]()


def warn(sentence: str) -> None:
    """Print a warning, a sentence without a full stop, beside what a command prints."""
    click.echo(f"warning: {sentence}", err=True)


def usable_runs(
    files: Sequence[Path], objection: Callable[[Run], str | None]
) -> tuple[list[Run], list[HpcflError]]:
    """Return the runs of results files that can be used, and warn of the others, and of doubts."""
    from hpcfl.results.reader import load_usable

    runs, errors = load_usable(files, objection)
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
