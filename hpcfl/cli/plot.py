"""`hpcfl plot`: draw figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcfl.errors import HpcflError, UsageError
from hpcfl.plots import KINDS

if TYPE_CHECKING:
    from hpcfl.results.reader import Run


@click.command("plot")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    required=True,
    help="; ".join(f"{name}: {what}" for name, what in KINDS.items()) + ".",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File of the figure: .png, .svg or .pdf.  [default: KIND.png]",
)
@click.option(
    "--against",
    type=click.Choice(["rounds", "bytes", "seconds"]),
    default="rounds",
    show_default=True,
    help="What accuracy is drawn over.",
)
@click.option("--target", type=float, help="Accuracy to mark.")
def command(
    paths: tuple[str, ...], kind: str, output: Path | None, against: str, target: float | None
) -> None:
    """Draw a figure of results.

    PATH is a results file or a folder of them.

    \b
    Examples:
      hpcfl plot results/train-sparse-100x199210-*.h5 --kind partition
      hpcfl plot results/ --kind accuracy --against bytes --output accuracy.pdf
      hpcfl plot secagg.h5 sparse.h5 --kind accuracy --against seconds --target 0.97
    """
    from hpcfl.launch import guess_rank

    if guess_rank() != 0:
        return  # started by mpirun all the same: one figure is enough

    from hpcfl.plots import style

    path = output or Path(f"{kind}.png")
    style.check_path(path)
    runs, left_out = _training_runs(paths)
    if kind == "partition":
        from hpcfl.plots import partition

        if len(runs) > 1:
            raise UsageError(
                f"a figure shows one run's partition, and there are {len(runs)} training runs: "
                "name one file"
            )
        figure = partition.draw(runs[0])
    else:
        from hpcfl.plots import accuracy

        figure = accuracy.draw(runs, against, target)
    style.save(figure, path)
    click.echo(f"Figure: {path}")
    if left_out:
        raise SystemExit(1)


def _training_runs(paths: tuple[str, ...]) -> tuple[list[Run], int]:
    """Return the training runs, and how many files could not be read; warn of each left out."""
    from hpcfl.results.reader import find, load

    files = find(paths)
    runs: list[Run] = []
    unreadable = 0
    for file in files:
        try:
            run = load(file)
        except HpcflError as error:
            if len(files) == 1:
                raise
            unreadable += 1
            click.echo(f"warning: {error}; left out", err=True)
            continue
        if run.training and run.rounds:
            runs.append(run)
        elif len(files) == 1:
            raise UsageError(f"{file} has no finished round of training to draw")
        else:
            click.echo(f"warning: {file} has no finished round of training; left out", err=True)
    if not runs:
        raise UsageError(f"none of the {len(files)} files has a finished round of training")
    return runs, unreadable
