"""`hpcfl plot`: draw figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcfl.cli.terminal import alone, usable_runs
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
    help="How seconds are drawn: distribution functions, or boxes, of one run a box a device.",
)
@click.option(
    "--clock",
    type=click.Choice(["cpu", "wall"]),
    default="cpu",
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
@alone
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
    from hpcfl import api
    from hpcfl.plots import style
    from hpcfl.results.reader import find

    path = output or Path(f"{kind}.png")
    style.check_path(path)
    known = KINDS[kind]
    for name in options.keys() - set(known.options):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning for --kind {kind}")
    chosen = {name: options[name] for name in known.options}
    if known.against:
        chosen["against"] = chosen["against"] or known.against[0]
        if chosen["against"] not in known.against:
            raise UsageError(
                f"--against {chosen['against']} has no meaning for --kind {kind}: "
                f"choose {', '.join(known.against)}"
            )

    files = find(paths)
    module = known.module()
    runs, errors = usable_runs(files, lambda run: module.lacking(run, **chosen))
    if not runs:
        raise UsageError(f"none of the {len(files)} files can be drawn")
    style.save(api.plot(runs, kind, pool=not no_pool, **chosen), path)
    click.echo(f"Figure: {path}")
    if any(not isinstance(error, UsageError) for error in errors):
        raise SystemExit(1)
