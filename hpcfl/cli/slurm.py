"""`hpcfl slurm`: job scripts for a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from hpcfl.cli.options import given
from hpcfl.cli.terminal import Command, alone

KINDS = ("bench", "sweep-array", "train")

_OPTIONS = (
    click.argument("kind", type=click.Choice(KINDS)),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- [HPCFL ARGUMENTS]"),
    click.option("--nodes", type=int, help="Nodes.  [default: as few as the tasks need]"),
    click.option("--ntasks", "tasks", type=int, help="Tasks, one core each.  [default: 101]"),
    click.option("--ntasks-per-node", "tasks_per_node", type=int, help="Tasks on every node."),
    click.option("--ranks", type=int, help="MPI ranks, when not one a task; more share cores."),
    click.option("--time", default="01:00:00", show_default=True, help="Time limit."),
    click.option("--partition", help="Partition."),
    click.option("--account", help="Account."),
    click.option("--job-name", "name", help="Name.  [default: hpcfl-KIND]"),
    click.option("--output", "log", help="The job's log, as in sbatch.  [default: slurm-%j.out]"),
    click.option(
        "--directive",
        "directives",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Another option of sbatch, such as qos=debug or exclusive; can be repeated.",
    ),
    click.option("--module", "modules", multiple=True, help="Module to load; can be repeated."),
    click.option("--activate", metavar="PATH", help="Python environment to activate."),
    click.option(
        "--launcher",
        type=click.Choice(["auto", "mpirun", "srun"]),
        default="mpirun",
        show_default=True,
        help="What starts the ranks; auto takes srun where only srun can.",
    ),
    click.option("--results", metavar="DIR", help="Folder of the results."),
    click.option("--array", help="sweep-array: cells, as in sbatch.  [default: all, from DIR]"),
    click.option(
        "--lead",
        "lead_seconds",
        type=int,
        default=120,
        show_default=True,
        help="train: seconds before the time limit at which to leave.",
    ),
    click.option("--requeue", is_flag=True, help="train: back to the queue after leaving."),
)


def _job_options(function: Command) -> Command:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.group("slurm")
def command() -> None:
    """Write and submit job scripts for Slurm.

    \b
    Kinds of jobs:
      bench         one run of hpcfl bench
      sweep-array   the cells of a frozen sweep as an array
      train         training with checkpoints; submitted again, it goes on

    What follows -- is the command line of hpcfl bench, sweep or train.

    \b
    Examples:
      hpcfl slurm render bench --ntasks 101 --time 00:20:00 -- sparse > job.sbatch
      hpcfl slurm submit bench --nodes 2 --ntasks 64 --partition test -- secagg --rounds 50
      hpcfl slurm submit sweep-array --ntasks 101 --results results/table1 -- plan.toml
      hpcfl slurm submit train --module openmpi --activate .venv -- fedavg --rounds 1000
    """


@command.command("render")
@_job_options
@alone
def render_command(**options: Any) -> None:
    """Print a job script.

    \b
    Examples:
      hpcfl slurm render bench
      hpcfl slurm render bench --ntasks 16 --ranks 101 -- sparse > job.sbatch
      hpcfl slurm render train --requeue --lead 300 -- fedavg --rounds 1000
    """
    from hpcfl.slurm.job import prepare
    from hpcfl.slurm.script import render

    click.echo(render(prepare(options, _typed)), nl=False)


@command.command("submit")
@_job_options
@alone
def submit_command(**options: Any) -> None:
    """Submit a job, and print its number.

    \b
    Examples:
      hpcfl slurm submit bench --time 00:20:00 -- sparse
      hpcfl slurm submit sweep-array --results results/table1 -- plan.toml
    """
    from hpcfl.slurm.job import check_frozen, prepare
    from hpcfl.slurm.script import render
    from hpcfl.slurm.submit import submit

    job = prepare(options, _typed)
    check_frozen(job)
    click.echo(submit(render(job)))


def _typed(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options on the command line of another command."""
    wanted: click.Command = importlib.import_module(f"hpcfl.cli.{name}").command
    with wanted.make_context(name, list(arguments)) as context:
        return given(context.params)
