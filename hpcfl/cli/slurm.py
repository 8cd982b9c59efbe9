"""`hpcfl slurm`: job scripts for a cluster."""

from __future__ import annotations

import importlib
from typing import Any

import click

from hpcfl.cli.options import Command, Group, given, options
from hpcfl.cli.terminal import alone
from hpcfl.errors import UsageError
from hpcfl.slurm.script import KINDS, Job


class _JobCommand(Command):
    """A command that keeps what follows -- for hpcfl, and gives what it does not know to sbatch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["arguments"] = (*args[at + 1 :],)
        return super().parse_args(ctx, args[:at])


def _job_options(function: Any) -> Any:
    function = options(Job)(alone(function))
    function = click.argument(
        "sbatch", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS] [-- HPCFL ARGUMENTS]"
    )(function)
    return click.argument("kind", type=click.Choice([*KINDS]))(function)


_PASSING = {"ignore_unknown_options": True}


@click.group("slurm", cls=Group)
def slurm() -> None:
    """Write and submit job scripts for Slurm.

    \b
    Kinds of jobs:
      bench         one run of hpcfl bench
      sweep-array   the cells of a frozen sweep as an array
      train         training with checkpoints; submitted again, it continues
      scaling       strong and weak scaling up to all tasks, and its tables

    Other options go to sbatch: --nodes, --ntasks, --time, --partition, --mem and so on. After --,
    give the command line of hpcfl bench, sweep or train; for scaling, give STUDY=PLAN once or
    several times, where STUDY is strong, weak, server-ranks or threads.

    \b
    Examples:
      hpcfl slurm render bench --ntasks 101 --time 00:20:00 -- sparse > job.sbatch
      hpcfl slurm render bench --submit --nodes 3 --server-node -- sparse
      hpcfl slurm render sweep-array --submit --results results/table1 \\
          -- plan.toml
      hpcfl slurm render train --setup 'module load openmpi' --requeue \\
          --signal B:USR1@300 -- fedavg --rounds 1000
    """


@slurm.command("render", cls=_JobCommand, context_settings=_PASSING)
@click.option(
    "--submit", is_flag=True, help="Hand the script to sbatch, and print the job's number."
)
@_job_options
def render_command(submit: bool, **typed: Any) -> None:
    """Print a job script, or submit it."""
    from hpcfl.slurm import script
    from hpcfl.slurm.submit import submit as hand_over

    job = _job(typed)
    if not submit:
        click.echo(script.render(job), nl=False)
        return
    if job.kind == "sweep-array" and script.cells_of(job) is None:
        raise UsageError(
            f"{job.folder} holds no frozen sweep: first run "
            f"hpcfl sweep {(*job.arguments, 'PLAN')[0]} --freeze --output {job.folder}"
        )
    click.echo(hand_over(script.render(job)))


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
    """Return a job; a mistake in its command line is refused before it has waited for its turn."""
    from hpcfl.algorithms import aggregation, federated
    from hpcfl.options.bench import DP_FEDAVG
    from hpcfl.options.definition import make

    arguments = click.get_current_context().meta["arguments"]
    job = make(Job, given(typed) | {"arguments": arguments})
    if arguments and job.kind != "scaling":
        name = job.kind.partition("-")[0]
        wanted: click.Command = getattr(importlib.import_module(f"hpcfl.cli.{name}"), name)
        with wanted.make_context(name, list(arguments)) as context:
            protocol, algorithm = map(context.params.get, ("protocol", "algorithm"))
        # One's own (MODULE:CLASS) may be found where the job runs, and not here.
        if protocol is not None and ":" not in protocol:
            aggregation.find(protocol, others=(DP_FEDAVG,))
        if algorithm is not None and ":" not in algorithm:
            federated.find(algorithm)
    return job
