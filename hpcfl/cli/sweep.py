"""`hpcfl sweep`: run a grid of configurations of `hpcfl bench` and `hpcfl train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcfl.cli.options import PLACE, Command
from hpcfl.cli.terminal import progress_bar, warn_of_insecurity
from hpcfl.errors import HpcflError, UsageError
from hpcfl.report.formats import counted
from hpcfl.system import launch

if TYPE_CHECKING:
    from hpcfl.sweeping.cells import Cell
    from hpcfl.sweeping.manifest import Manifest
    from hpcfl.sweeping.session import CellOutcome


@click.command("sweep", cls=Command)
@click.argument("plan", type=click.Path(), metavar="[PLAN]", required=False)
@click.option(
    "--output",
    type=PLACE,
    default=Path("results/sweep"),
    help="Folder of the sweep, one for each plan.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="SEED",
    default=0,
    help="Seed of the order of the cells, at the first start.",
)
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the plan.")
@click.option("--dry-run", is_flag=True, help="List the cells, their state and time; run nothing.")
@click.option("--freeze", is_flag=True, help="Write sweep.json only, for jobs that run --cell.")
@click.option("--cell", type=int, metavar="I", help="Run this cell of the frozen sweep.json only.")
def sweep(
    plan: str | None,
    output: Path,
    seed: int,
    no_shuffle: bool,
    dry_run: bool,
    freeze: bool,
    cell: int | None,
) -> None:
    """Run all cells of a plan, each into a results file of its own.

    PLAN is a TOML file, or the name of a plan that comes with hpcfl (without PLAN, these are
    listed). The file has fixed options and lists of options: those of bench with a protocol, or
    those of train with an algorithm.

    \b
      [fixed]
      dim = 165_000
      dropout = 0.3
      [grid]
      protocol = ["secagg", "sparse"]
      devices = [25, 50, 75, 100]
      repeats = 3

    devices-per-rank, instead of devices, sets the number on each rank that holds devices. The cells
    are all combinations of the lists; several [[grid]] tables add up. The first start writes the
    cells and their order to sweep.json. If started again, a sweep runs unfinished cells, each from
    its last finished round; a changed plan needs another folder. Cells that cannot run are listed
    at the end, and by --dry-run, with exit status 1.

    \b
    Examples:
      mpirun -n 101 hpcfl sweep table-1 --output results/table1
      hpcfl sweep table-1 --freeze --output results/table1
      mpirun -n 101 hpcfl sweep table-1 --output results/table1 \\
          --cell $SLURM_ARRAY_TASK_ID
    """
    if sum((dry_run, freeze, cell is not None)) > 1:
        raise UsageError("give only one of --dry-run, --freeze and --cell")

    def prepare(ranks: int = 1) -> Manifest:
        from hpcfl.sweeping.cells import resolve
        from hpcfl.sweeping.manifest import arrange
        from hpcfl.sweeping.plan import read
        from hpcfl.sweeping.shipped import locate

        named = plan or ""
        return arrange(named, resolve(read(locate(named), ranks)), None if no_shuffle else seed)

    listing = plan is None and cell is None
    if listing or dry_run or freeze:
        if launch.leave_to_first_rank():
            return
        if listing:
            _print_plans()
        elif freeze:
            _freeze(output, prepare(launch.guess_size() or 1))
        else:
            _list(output, prepare(launch.guess_size() or 1))
        return
    from hpcfl.sweeping.session import DONE, SKIPPED

    if any(outcome.state not in (DONE, SKIPPED) for outcome in _run(output, prepare, cell)):
        raise SystemExit(1)


def _print_plans() -> None:
    from hpcfl.report.table import Table, label
    from hpcfl.sweeping import shipped

    plans = Table((label("plan"), label("what it is for")), [*shipped.titles().items()])
    click.echo(f"{plans.text()}\n\nFiles, to make others of: {shipped.FOLDER}")


def _freeze(output: Path, manifest: Manifest) -> None:
    from hpcfl.sweeping.manifest import NAME, freeze

    cells = freeze(output, manifest).cells
    numbers = f"{counted(len(cells), 'cell')}, numbered 0 to {len(cells) - 1}"
    click.echo(f"{output / NAME}: {numbers}")


def _list(output: Path, manifest: Manifest) -> None:
    from hpcfl.sweeping.manifest import check_same, load
    from hpcfl.sweeping.tables import list_cells, render_cells

    stored = load(output)
    if stored is not None:
        check_same(output, stored, manifest)
        manifest = stored
    cells = list_cells(output, manifest)
    click.echo(render_cells(cells, manifest.seed))
    refused = sum(bool(one.why) for one in cells)
    if refused:
        raise HpcflError(f"{refused} of {counted(len(cells), 'cell')} cannot run")


def _run(output: Path, prepare: Callable[[int], Manifest], index: int | None) -> list[CellOutcome]:
    from hpcfl.cli.watching import Spoken
    from hpcfl.comm.world import connect
    from hpcfl.sweeping import session
    from hpcfl.system.interruption import noting_signals

    world = connect()
    cells = session.plan_cells(world, output, lambda: prepare(world.size), index)
    first = world.rank == 0
    given = {word.partition("=")[0] for cell in cells for word in cell.arguments}
    warn_of_insecurity(first and "--insecure-seed" in given)
    seen = launch.terminal_for_progress() is not None
    with noting_signals(to_the_end=True), progress_bar(sum(cell.rounds for cell in cells)) as bar:
        before = 0

        def begun(cell: Cell) -> None:
            bar.label = f"{cell.algorithm or cell.protocol} {cell.devices}"
            bar.render_progress()

        def ended(outcome: CellOutcome) -> None:
            from hpcfl.sweeping.tables import render_outcome

            # A cell that was skipped or stopped early has had fewer rounds than planned.
            nonlocal before
            before += outcome.cell.rounds
            bar.update(before - bar.pos)
            if not seen and outcome.state != session.SKIPPED:
                click.echo(render_outcome(outcome, len(cells) if index is None else None))

        outcomes = session.run(world, cells, output, begun, ended, Spoken(lambda: bar.update(1)))
    if first:
        # The other ranks, often a hundred on a machine, do not load the modules that read files.
        from hpcfl.sweeping.tables import render_results

        click.echo(render_results(output, outcomes))
    return outcomes
