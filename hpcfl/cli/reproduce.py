"""`hpcfl reproduce`: the papers' tables and figures, run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcfl.cli.options import Command, Output, option, same
from hpcfl.cli.terminal import check_alone
from hpcfl.errors import UsageError, no_such
from hpcfl.options.shared import CommonOptions, RunOptions
from hpcfl.options.training import TrainOptions
from hpcfl.system import outputs

if TYPE_CHECKING:
    from hpcfl.comm.world import World
    from hpcfl.plots.style import Frame
    from hpcfl.reproduce.artefact import Artefact, Setting


@click.command("reproduce", cls=Command)
@click.argument("names", nargs=-1, metavar="[ID...]")
@option("--list", "listing", is_flag=True, help="Show all tables and figures and stop.")
@option(
    "--scale",
    type=click.Choice(["paper", "small", "stand-in", "more"]),
    help="How much to run; more: further seeds and other readings of the text, compared as far as "
    "they were run.  [default: the paper's scale where it takes at most --max-minutes]",
)
@option(
    "--max-minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    default=60.0,
    help="Longest run that is chosen without --scale, estimated for two cores.",
)
@same(
    TrainOptions,
    "data_dir",
    "Folder of the data sets.  [default: $HPCFL_DATA]",
    type=click.Path(path_type=Path),
    envvar="HPCFL_DATA",
)
@same(
    RunOptions,
    "output",
    "Folder for the findings.",
    type=Output(outputs.FOLDER),
    default=Path("results/reproduction"),
)
@option("--again", is_flag=True, help="Also run again what was run before.")
@option("--kept", is_flag=True, help="Run nothing: show, draw and write what was run before.")
@same(
    CommonOptions,
    "plot",
    "Draw the figure too: .png, .svg or .pdf. What was run to its end is drawn as it is, unless "
    "--scale or --again asks for another run.",
    type=Output(outputs.FIGURE),
)
@same(
    CommonOptions,
    "size",
    "Width of the figure of --plot: column (3.33 inches) or page (7 inches), with the height that "
    "it needs; or width x height in inches, such as 6x4.  [default: page]",
)
@option(
    "--document",
    type=Output(outputs.DOCUMENT),
    metavar="FILE.md",
    help="Write all findings to a Markdown file, with figures beside it.",
)
def command(
    names: tuple[str, ...],
    listing: bool,
    scale: str | None,
    max_minutes: float,
    data_dir: Path | None,
    output: Path,
    again: bool,
    kept: bool,
    plot: Path | None,
    size: str | None,
    document: Path | None,
) -> None:
    """Run tables and figures of the papers again, and say where they differ.

    ID is one of --list, or a paper for all of its own. A run that was interrupted continues
    where it was; what was run before is not run again.

    \b
    Examples:
      hpcfl reproduce --list
      hpcfl reproduce sparse-secagg/table-1
      mpirun -n 3 hpcfl reproduce sparse-secagg/figure-5 --data-dir data
      hpcfl reproduce zcdp/figure-7 --data-dir data --plot figure-7.pdf
      hpcfl reproduce --document docs/reproduction.md
      hpcfl reproduce study --kept --document docs/study.md
    """
    from hpcfl.comm.world import connect
    from hpcfl.plots import framed
    from hpcfl.reproduce import STUDY, select

    if listing:
        check_alone("--list", "shows all tables and figures", "output")
    if not (names or listing or document):
        raise UsageError("name a table or figure, or give --list or --document")
    chosen = select(names)
    if not chosen and (again or scale):
        raise UsageError(
            f"--{'again' if again else 'scale'} is about what is run: name a table or figure"
        )
    if plot is not None and (len(chosen) != 1 or chosen[0].draw is None):
        raise UsageError("--plot takes one artefact that has a figure")
    if kept and (again or scale):
        raise UsageError("--kept runs nothing: leave --again and --scale out")
    if plot is None and size is not None:
        raise UsageError("--size is given, and has no meaning without --plot: leave it out")
    if document is not None and document.suffix != ".md":
        raise UsageError(f"--document is {document}: the page is Markdown, so name a file *.md")
    frame = framed(size or "page")
    world = connect()
    wanted = (
        (output if chosen else None, outputs.FOLDER),
        (plot, outputs.FIGURE),
        (document, outputs.DOCUMENT),
    )
    told = world.first_alone(
        lambda: {kind: outputs.check(path, kind) for path, kind in wanted if path is not None}
    )
    # What is there is drawn: a figure is no reason to train for hours.
    if plot is not None and scale is None and not (again or kept):
        kept = world.agreed(lambda: {"there": _is_kept(chosen[0], output)})["there"]
    for artefact in chosen if not kept else ():
        _check(artefact, scale, max_minutes, data_dir)
    if world.rank == 0 and listing:
        _list(output)
    for artefact in chosen:
        if not kept:
            _run(world, artefact, scale or artefact.scale(max_minutes), data_dir, output, again)
        if told is not None:
            _print(artefact, output, plot, frame)
    if told is not None and plot is not None:
        click.echo(f"Figure: {told[outputs.FIGURE]}")
    if told is not None and document is not None:
        _write(document, output, {artefact.group for artefact in chosen} == {STUDY})
        click.echo(f"Document: {told[outputs.DOCUMENT]}")
    world.settle(None)


def _write(document: Path, output: Path, of_study: bool) -> None:
    """Write the page of the study, or that of all papers."""
    if of_study:
        from hpcfl.reproduce.study import page

        page.write(document, output)
    else:
        from hpcfl.reproduce import document as documents

        documents.write(document, output)


def _check(
    artefact: Artefact, scale: str | None, max_minutes: float, data_dir: Path | None
) -> None:
    if scale is not None and scale not in artefact.scales:
        raise no_such(f"scale of {artefact.id} called", scale, artefact.scales)
    from hpcfl.learning.base import folder_of

    for name in artefact.needs(scale or artefact.scale(max_minutes)):
        place = data_dir and folder_of(name, data_dir)
        if place is None or not place.is_dir():
            where = f"{place} does not exist" if place else "no --data-dir is given"
            raise UsageError(
                f"{artefact.id} needs the data set {name}, and {where}: "
                f"'hpcfl data fetch {name} --data-dir DIR' gets it"
            )


def _run(
    world: World, artefact: Artefact, scale: str, data_dir: Path | None, output: Path, again: bool
) -> None:
    from hpcfl.reproduce import session
    from hpcfl.system.interruption import noting_signals

    if world.rank == 0:
        chosen = artefact.scales[scale]
        minutes = f"{chosen.minutes:g} minute{'' if chosen.minutes == 1 else 's'}"
        click.echo(
            f"{artefact.id}: {artefact.titled(scale)}\nscale {scale}: {chosen.what}, about "
            f"{minutes} on two cores, less what is kept in {output}",
            err=True,
        )

    def progress(number: int, count: int, setting: Setting) -> None:
        words = ", ".join(f"{name} {value}" for name, value in setting.items())
        click.echo(f"  {number + 1}/{count}: {words}", err=True)

    with noting_signals():
        session.run(world, artefact, scale, output, data_dir, again=again, progress=progress)


def _is_kept(artefact: Artefact, output: Path) -> bool:
    """Return whether a scale was run to its end before."""
    from hpcfl.reproduce.store import Store

    return Store(output, artefact.group).results(artefact) is not None


def _print(artefact: Artefact, output: Path, plot: Path | None, frame: Frame) -> None:
    from hpcfl.reproduce.document import comparison, draw, state, tally
    from hpcfl.reproduce.store import Store

    store = Store(output, artefact.group)
    found = store.results(artefact)
    if found is None:
        told = f"{artefact.id}: {state(artefact, store)}"
        if plot is not None:
            raise UsageError(f"{told}: there is nothing to draw without running it")
        click.echo(f"{told}\n")
        return
    scale, results = found
    lines = store.compare(artefact, results)
    click.echo(f"{artefact.id}, {artefact.scales[scale].what}: {tally(lines)}\n")
    click.echo(comparison(lines).text() + "\n")
    if plot is not None:
        draw(artefact, results, store, plot, frame)


def _list(output: Path) -> None:
    from hpcfl.reproduce.document import opened, overview

    stores = opened(output)
    click.echo(overview(stores, [*stores]).text())
