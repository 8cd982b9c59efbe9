"""`hpcfl plot`: draw figures of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

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
    help="; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items()) + ".",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File of the figure: .png, .svg or .pdf; overwritten.  [default: KIND.png]",
)
@click.option(
    "--against",
    type=click.Choice([value for kind in KINDS.values() for value in kind.against]),
    help="What is across: "
    + "; ".join(
        f"{', '.join(kind.against)} for {name}" for name, kind in KINDS.items() if kind.against
    )
    + ".  [default: the first]",
)
@click.option(
    "--style",
    type=click.Choice(["ecdf", "box"]),
    default="ecdf",
    show_default=True,
    help="How seconds are drawn: distribution functions, or boxes, of one run a box a device.",
)
@click.option(
    "--clock",
    type=click.Choice(["cpu", "wall"]),
    default="cpu",
    show_default=True,
    help="Which seconds: CPU time of the protocol, or elapsed time.",
)
@click.option("--target", type=float, help="Accuracy to mark, from 0 to 1.")
@click.option(
    "--protocol",
    metavar="MODULE:CLASS",
    help="Class of the runs' protocol, if it does not come with hpcfl.",
)
@click.option("--log-x", is_flag=True, help="Draw over a logarithmic axis.")
@click.option("--no-pool", is_flag=True, help="Keep launches of one configuration apart.")
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[str, ...],
    kind: str,
    output: Path | None,
    no_pool: bool,
    **options: Any,
) -> None:
    """Draw a figure of results.

    PATH is a results file or a folder of them. Launches of one configuration on equal machines
    are pooled as repeats.

    \b
    Examples:
      hpcfl plot results/train-sparse-100x199210-*.h5 --kind partition
      hpcfl plot results/ --kind accuracy --against bytes --output accuracy.pdf
      hpcfl plot secagg.h5 sparse.h5 --kind accuracy --against seconds --target 0.97
      hpcfl plot results/ --kind scaling --against devices --output scaling.svg
      hpcfl plot secagg.h5 sparse.h5 --kind phases
      hpcfl plot sparse.h5 --kind ranks --style box --clock wall
      hpcfl plot results/train-cdp-*.h5 --kind epsilon
    """
    from hpcfl.system.launch import leave_to_first_rank

    if leave_to_first_rank():
        return  # started by mpirun all the same: one figure is enough

    from hpcfl.plots import style
    from hpcfl.results import pooling

    path = output or Path(f"{kind}.png")
    style.check_path(path)
    taken = KINDS[kind].options
    for name in options.keys() - set(taken):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning for --kind {kind}")
    chosen = {name: options[name] for name in taken}
    if "against" in chosen:
        chosen["against"] = _against(kind, chosen["against"])
    module = KINDS[kind].module()

    runs, unreadable = _runs(paths, lambda run: module.lacking(run, **chosen))
    if not no_pool:
        runs = [pool.run for pool in pooling.group(runs)]
    style.save(module.draw(runs, **chosen), path)
    click.echo(f"Figure: {path}")
    if unreadable:
        raise SystemExit(1)


def _against(kind: str, asked: str | None) -> str:
    """Return what is across: as asked for, else what the kind is mostly drawn over."""
    known = KINDS[kind].against
    if asked is None:
        return known[0]
    if asked not in known:
        raise UsageError(
            f"--against {asked} has no meaning for --kind {kind}: choose {', '.join(known)}"
        )
    return asked


def _runs(paths: tuple[str, ...], lacking: Callable[[Run], str | None]) -> tuple[list[Run], int]:
    """Return the runs to draw, and how many files could not be read; warn of each left out."""
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
        reason = lacking(run)
        if reason is None:
            runs.append(run)
            _warn_about(run)
        elif len(files) == 1:
            raise UsageError(f"{file} {reason}")
        else:
            click.echo(f"warning: {file} {reason}; left out", err=True)
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be drawn")
    return runs, unreadable


def _warn_about(run: Run) -> None:
    if run.status == "failed":
        click.echo(f"warning: {run.path} is of a run that failed", err=True)
    elif run.status != "complete":
        click.echo(
            f"warning: {run.path} is of a run that has not ended or was killed "
            f"(status {run.status})",
            err=True,
        )
