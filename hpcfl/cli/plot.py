"""`hpcfl plot`: draw figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcfl.errors import UsageError
from hpcfl.plots import KINDS


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
    from hpcfl.results.reader import find, load_usable

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

    files = find(paths)
    runs, errors = load_usable(files, lambda run: module.lacking(run, **chosen))
    for error in errors:
        click.echo(f"warning: {error}; left out", err=True)
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be drawn")
    for run in runs:
        if run.unfinished:
            click.echo(f"warning: {run.path} {run.unfinished}", err=True)
    if not no_pool:
        runs = [pool.run for pool in pooling.group(runs)]
    style.save(module.draw(runs, **chosen), path)
    click.echo(f"Figure: {path}")
    if any(not isinstance(error, UsageError) for error in errors):
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
