"""`hpcfl slurm`: job scripts for a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from hpcfl.cli.options import Group, given, option, options
from hpcfl.cli.terminal import Command, alone
from hpcfl.slurm.script import KINDS, Job, render


def _job_options(function: Command) -> Command:
    function = options(Job)(alone(function))
    function = click.argument(
        "arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- [HPCFL ARGUMENTS]"
    )(function)
    return click.argument("kind", type=click.Choice([*KINDS]))(function)


@click.group("slurm", cls=Group)
def command() -> None:
    """Write and submit job scripts for Slurm.

    \b
    Kinds of jobs:
      bench         one run of hpcfl bench
      sweep-array   the cells of a frozen sweep as an array
      train         training with checkpoints; submitted again, it continues
      scaling       strong and weak scaling up to all tasks, and its tables

    What follows -- is the command line of hpcfl bench, sweep or train; of scaling STUDY=PLAN, once
    or several times: strong, weak, server-ranks and threads, by default all with the plans
    scaling-strong, scaling-weak, scaling-server and scaling-threads.

    \b
    Examples:
      hpcfl slurm render bench --ntasks 101 --time 00:20:00 -- sparse > job.sbatch
      hpcfl slurm submit bench --nodes 2 --ntasks 64 --partition test \\
          -- secagg --rounds 50
      hpcfl slurm submit sweep-array --ntasks 101 --results results/table1 \\
          -- plan.toml
      hpcfl slurm submit bench --nodes 3 --ntasks 65 --server-node -- sparse
      hpcfl slurm submit train --module openmpi --activate .venv \\
          -- fedavg --rounds 1000
      hpcfl slurm submit scaling --nodes 4 --ntasks-per-node 32 --time 2:00:00
    """


@command.command("render")
@_job_options
def render_command(**typed: Any) -> None:
    """Print a job script.

    \b
    Examples:
      hpcfl slurm render bench
      hpcfl slurm render bench --ntasks 16 --ranks 101 -- sparse > job.sbatch
      hpcfl slurm render train --requeue --lead 300 -- fedavg --rounds 1000
    """
    from hpcfl.slurm.job import prepare

    click.echo(render(prepare(given(typed), _typed)), nl=False)


@command.command("submit")
@_job_options
def submit_command(**typed: Any) -> None:
    """Submit a job, and print its number.

    \b
    Examples:
      hpcfl slurm submit bench --time 00:20:00 -- sparse
      hpcfl slurm submit sweep-array --results results/table1 -- plan.toml
    """
    from hpcfl.slurm.job import check_frozen, prepare
    from hpcfl.slurm.submit import submit

    job = prepare(given(typed), _typed)
    check_frozen(job)
    click.echo(submit(render(job)))


@command.command("probe")
@option("--mpi", metavar="NAME", help="Try this one, as srun --mpi=list names it.")
@alone
def probe_command(mpi: str | None) -> None:
    """Print with what srun --mpi two ranks find each other; for job scripts.

    Tried in a job, in the order of what MPI and Slurm are likely to have in common. The exit status
    is 1 if srun cannot start MPI here, or starts ranks that each see themselves alone.
    """
    from hpcfl.slurm.probe import find_manager

    manager, library = find_manager(mpi)
    click.echo(f"srun --mpi={manager}: two ranks of {library} find each other", err=True)
    click.echo(manager)


def _typed(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options on the command line of another command."""
    wanted: click.Command = importlib.import_module(f"hpcfl.cli.{name}").command
    with wanted.make_context(name, list(arguments)) as context:
        return given(context.params)
