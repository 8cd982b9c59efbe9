"""Output and checks of input files that several commands share."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcfl.errors import HpcflError, UsageError
from hpcfl.system import launch

if TYPE_CHECKING:
    from hpcfl.results.reader import Run

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def footer_wanted(as_json: bool) -> bool:
    """Return whether to print lines for other programs at the end: not in JSON or on a terminal."""
    return not as_json and not launch.output_is_watched()


def show_footer(path: Path) -> None:
    """Print the lines of a run for other programs; none if its file cannot be read."""
    from hpcfl.results.footer import footer
    from hpcfl.results.reader import load

    # Another error already reports what happened to the file.
    with suppress(HpcflError):
        click.echo(footer(load(path)))


def alone(command: Command) -> Command:
    """Return a command that only rank 0 runs if mpirun started several ranks."""

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
    """Print a warning, a sentence without a full stop, to standard error."""
    click.echo(f"warning: {sentence}", err=True)


def warn_of_insecurity(insecure: bool) -> None:
    """Warn, if `insecure`, that --insecure-seed makes keys and noise predictable."""
    if insecure:
        warn("--insecure-seed is given: neither keys nor noise are secret")


def usable_runs(
    paths: Sequence[str], objection: Callable[[Run], str | None], where: str | None
) -> tuple[list[Run], bool]:
    """Return the runs that can be used, and whether all files could be read.

    Warns of unusable files and runs, and of incomplete runs. `objection` returns why a run cannot
    be used, or None. `where` selects runs; see `hpcfl.results.selection.select`.
    """
    from hpcfl.results.reader import find, load_usable
    from hpcfl.results.selection import select

    files = find(paths)
    runs, errors = load_usable(files)
    complete = not errors
    selected = runs if where is None else select(runs, where)
    reasons = {run.path: objection(run) for run in selected}
    errors += [UsageError(f"{path} {why}") for path, why in reasons.items() if why is not None]
    if len(files) == 1 and errors:
        raise errors[0]
    for error in errors:
        warn(f"{error}; left out")
    runs = [run for run in selected if reasons[run.path] is None]
    if not runs:
        raise (UsageError if complete else HpcflError)(
            f"none of the {len(files)} files can be used"
        )
    for run in runs:
        if run.unfinished:
            warn(f"{run.path} {run.unfinished}")
    return runs, complete


def progress_bar(length: int, label: str = "") -> Any:
    """Return a progress bar, which prints nothing if no terminal would show it."""
    # Without a terminal, click prints only the label, which the StringIO discards.
    stream = launch.terminal_for_progress() or io.StringIO()
    return click.progressbar(length=length, label=label, file=stream)
