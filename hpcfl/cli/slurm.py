"""`hpcfl slurm`: job scripts for a cluster."""

from __future__ import annotations

import importlib
from typing import Any

import click

from hpcfl.cli.options import Command, Group, given, options
from hpcfl.cli.terminal import alone
from hpcfl.slurm.script import COMMANDS, KINDS, Job, render


class _JobCommand(Command):
    """A command that keeps arguments after -- for hpcfl, and passes unknown options to sbatch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["arguments"] = (*args[at + 1 :],)
        return super().parse_args(ctx, args[:at])


@click.group("slurm", cls=Group)
def slurm() -> None:
    """Write job scripts for Slurm, for sbatch to read.

    \b
    Kinds of jobs:
      bench         one run of hpcfl bench
      sweep-array   the cells of a frozen sweep as an array
      train         training with checkpoints; submitted again, it continues
      silo          few devices with very long vectors, and their table
      scaling       strong and weak scaling up to all tasks, and its tables

    Other options go to sbatch: --nodes, --ntasks, --time, --partition, --mem and so on. After --,
    give the command line of hpcfl bench, sweep or train; for scaling, give STUDY=PLAN once or
    several times, where STUDY is strong, weak, server-ranks or threads.

    \b
    Examples:
      hpcfl slurm render bench --ntasks 101 --time 00:20:00 -- sparse > job.sbatch
      hpcfl slurm render sweep-array --results results/table1 \\
          -- plan.toml | sbatch
    """


@slurm.command("render", cls=_JobCommand, context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice([*KINDS]))
@click.argument(
    "sbatch", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS] [-- HPCFL ARGUMENTS]"
)
@options(Job)
@alone
def render_command(**typed: Any) -> None:
    """Print a job script."""
    click.echo(render(_job(typed)), nl=False)


@slurm.command("probe", cls=Command)
@alone
def probe_command() -> None:
    """Print the srun --mpi type with which two ranks find each other; for job scripts.

    The exit status is 1 if srun cannot start MPI here, or starts ranks that each see themselves
    alone.
    """
    from hpcfl.slurm.probe import find_manager

    click.echo(find_manager())


def _job(typed: dict[str, Any]) -> Job:
    """Return a job; refuse a mistake in its command line now, before the job waits in the queue."""
    from hpcfl.algorithms import aggregation, federated
    from hpcfl.options.bench import DP_FEDAVG
    from hpcfl.options.definition import make

    arguments = click.get_current_context().meta["arguments"]
    job = make(Job, given(typed) | {"arguments": arguments})
    if arguments and job.kind != "scaling":
        name = COMMANDS.get(job.kind, job.kind)
        wanted: click.Command = getattr(importlib.import_module(f"hpcfl.cli.{name}"), name)
        with wanted.make_context(name, list(arguments)) as context:
            protocol, algorithm = map(context.params.get, ("protocol", "algorithm"))
        # A user's own MODULE:CLASS may exist only where the job runs.
        if protocol is not None and ":" not in protocol:
            aggregation.find(protocol, others=(DP_FEDAVG,))
        if algorithm is not None and ":" not in algorithm:
            federated.find(algorithm)
    return job
