"""`python -m papers`: runs the papers' tables and figures again, and says where they differ."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

import hpcfl
from hpcfl.comm.world import connect
from papers import ARTEFACTS, pages, panels, select
from papers.artefact import Artefact, Store
from papers.verdicts import tally


@click.command(context_settings={"max_content_width": 100})
@click.argument("names", nargs=-1, metavar="[ID...]")
@click.option(
    "--scale",
    type=click.Choice(["paper", "small"]),
    default="paper",
    help="How much to run; small: less than the paper, in minutes.  [default: paper]",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    envvar="HPCFL_DATA",
    help="Folder of the data sets.  [default: $HPCFL_DATA]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("results/reproduction"),
    help="Folder for the findings.  [default: results/reproduction]",
)
@click.option("--kept", is_flag=True, help="Run nothing: show what was run before.")
@click.option(
    "--figures", type=click.Path(path_type=Path), help="Draw the figures into this folder, as SVG."
)
@click.option(
    "--pages", "written", is_flag=True, help="Write papers/reproduction.md and papers/study.md."
)
def main(
    names: tuple[str, ...],
    scale: str,
    data_dir: Path | None,
    output: Path,
    kept: bool,
    figures: Path | None,
    written: bool,
) -> None:
    """Run tables and figures of the papers again, and say where they differ.

    ID is a table or figure, or a paper for all of its tables and figures. Without an ID, all are
    listed. An interrupted run continues, and stored results are not computed again. Under mpirun,
    ranks share the devices.

    \b
    Examples:
      python -m papers sparse-secagg/table-1
      mpirun -n 3 python -m papers zcdp/figure-5 --data-dir data
      python -m papers locks --kept --figures figures
    """
    try:
        chosen = select(names)
    except LookupError as error:
        raise click.UsageError(f"there is no {error}: python -m papers lists all of them") from None
    first = connect().rank == 0
    for artefact in ARTEFACTS.values() if first and not (names or written) else ():
        click.echo(f"{artefact.id}: {artefact.title}; {pages.state(artefact, output)}")
    for artefact in chosen:
        if not kept:
            _run(artefact, scale if scale in artefact.scales else "paper", data_dir, output)
        if first:
            _show(artefact, output, figures)
    if written and first:
        pages.write(output)


def _run(artefact: Artefact, scale: str, data_dir: Path | None, output: Path) -> None:
    """Run the settings of an artefact that have no results yet; every rank calls this."""
    world = connect()
    settings = artefact.scales[scale].settings
    store = Store(output, artefact.group)
    # Only rank 0 reads and writes the store.
    missing = world.agreed(lambda: {"missing": store.missing(settings)})["missing"]
    for count, number in enumerate(missing, 1):
        setting = settings[number]
        if world.rank == 0:
            words = ", ".join(f"{name} {value}" for name, value in setting.items())
            click.echo(f"{artefact.id}, {count}/{len(missing)}: {words}", err=True)
        start = time.perf_counter()
        found = artefact.run(setting, data_dir)
        if world.rank == 0:
            store.add(
                setting,
                found,
                seconds=round(time.perf_counter() - start, 1),
                finished=f"{datetime.now(UTC):%Y-%m-%d}",
                hpcfl_version=hpcfl.__version__,
                ranks=world.size,
            )


def _show(artefact: Artefact, output: Path, figures: Path | None) -> None:
    """Print the results beside the paper's, and draw them."""
    found = Store(output, artefact.group).results(artefact)
    if found is None:
        click.echo(f"{artefact.id}: not run yet")
        return
    scale, results = found
    lines = artefact.lines(results)
    click.echo(f"{artefact.id}, {scale.what}: {tally(lines)}\n")
    for line in lines:
        beside = f"the paper {line.paper}; here {line.ours}" if line.paper else line.ours
        click.echo(f"  {line.what}: {beside}" + (f"\n    {line.told}" if line.told else ""))
    if figures is not None and artefact.draw is not None:
        figures.mkdir(parents=True, exist_ok=True)
        path = figures / f"{artefact.id.replace('/', '-')}.svg"
        panels.draw(artefact.draw(results), path)
        click.echo(f"Figure: {path}")


if __name__ == "__main__":
    try:
        main(prog_name="python -m papers")
    except hpcfl.HpcflError as error:
        raise SystemExit(f"Error: {error}") from None
