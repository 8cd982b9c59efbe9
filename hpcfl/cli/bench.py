"""`hpcfl bench`: measure an aggregation protocol on vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.cli.options import link_options, listing, output_option, protocol_options, seed_options
from hpcfl.errors import UsageError


class DeviceCounts(click.ParamType):
    """Numbers of devices, separated by commas."""

    name = "N[,N...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        try:
            counts = [int(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers like 25,50,100", param, ctx)
        if min(counts) < 1:
            self.fail("at least 1 device is needed", param, ctx)
        return counts


@click.command("bench")
@click.argument("protocol")
@click.option(
    "--devices",
    type=DeviceCounts(),
    help="Number of devices; several are run one after the other.  "
    "[default: one on every rank but the server's, 100 in one process]",
)
@click.option("--dim", type=int, help="Length d of the vectors.  [default: 165000]")
@click.option("--rounds", type=int, default=10, show_default=True, help="Measured rounds.")
@click.option(
    "--max-rounds",
    type=int,
    help="Measured rounds at most; --rounds are then measured at least.  "
    "[default: --rounds; ten times as many with --rel-ci or --max-seconds]",
)
@click.option(
    "--rel-ci",
    type=float,
    metavar="SHARE",
    help="Stop once the 95 % interval of the median round is within this share of it, like 0.05.",
)
@click.option("--max-seconds", type=float, help="Stop once this much time has passed.")
@click.option("--warmup", type=int, default=2, show_default=True, help="Rounds before them.")
@output_option
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    help="Go on with the results file of a run that did not come to its end, with its options.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@seed_options
@protocol_options
@click.option(
    "--updates",
    type=click.Path(path_type=Path),
    help="Vectors from a .npy or HDF5 file, one row a device.",
)
@click.option(
    "--save-aggregate",
    type=click.Path(path_type=Path),
    help="Write the last round's decoded sum, as .npy or HDF5.",
)
@click.option(
    "--keep-transcript",
    type=click.Path(path_type=Path),
    help="Write the last round's messages, a fraction --gamma of the devices' keys and all honest "
    "devices' values to an .npz file, for 'hpcfl attack'. Needs --insecure-seed.",
)
@click.option(
    "--aggregate",
    help="Protocol that dp-fedavg's vectors are summed by.  [default: secagg]",
)
@click.option(
    "--noise-multiplier",
    type=float,
    help="Noise on the sum over --clip-norm (dp-fedavg).  [default: 1]",
)
@click.option("--clip-norm", type=float, help="Norm of a vector (dp-fedavg).  [default: 1]")
@click.option("--delta", type=float, help="Of the privacy (dp-fedavg).  [default: 1e-5]")
@click.option(
    "--kill",
    multiple=True,
    metavar="WHAT",
    help="Let ranks die on purpose: rank=7,phase=masked_input,round=3, or rank=7+9; with "
    "moment=during after they made their messages, moment=after at the end of the phase. Rounds "
    "count from 0, warm-up included. May be repeated. Needs mpirun --with-ft ulfm.",
)
@link_options
@click.pass_context
@listing(protocols=PROTOCOLS)
def command(
    context: click.Context,
    devices: list[int] | None,
    output: Path,
    resume: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure PROTOCOL on vectors, or MODULE:CLASS of your own.

    Every round is checked, timed by phase and device, and written to an HDF5 file. Ctrl-C, SIGTERM
    and SIGUSR1 let the round end; the exit status is then 75, and --resume goes on.

    \b
    Protocols:
      {protocols}
      dp-fedavg     discrete Gaussian noise within --aggregate (Kairouz et al. 2021)

    \b
    Examples:
      mpirun -n 101 hpcfl bench sparse
      mpirun -n 101 hpcfl bench secagg --devices 25,50,75,100
      mpirun -n 101 hpcfl bench sparse --rel-ci 0.05 --max-rounds 200 --max-seconds 600
      mpirun -n 17 hpcfl bench secagg --group ring32 --upload reduce --dropout 0
      mpirun -n 5 hpcfl bench sparse --devices 1000 --dim 10000
      mpirun -n 3 hpcfl bench secagg-graph --devices 10000 --dim 10000 --rounds 1 --warmup 0
      mpirun -n 101 hpcfl bench dp-fedavg --aggregate secagg --noise-multiplier 1
      hpcfl bench sparse --updates updates.npy --save-aggregate sum.npy
      mpirun -n 101 hpcfl bench sparse --rounds 2000 --resume results/run.h5
      mpirun --with-ft ulfm -n 17 hpcfl bench secagg --kill rank=7,phase=masked_input,round=3
    """
    from hpcfl.bench import session
    from hpcfl.bench.experiment import Options
    from hpcfl.cli.watching import Spoken
    from hpcfl.comm.world import connect
    from hpcfl.system import launch
    from hpcfl.system.interruption import noting_signals

    if resume is not None and context.get_parameter_source("output") is ParameterSource.COMMANDLINE:
        raise UsageError("--resume goes on in its own file: leave --output out")
    world = connect()
    first = world.rank == 0
    summaries: list[dict[str, Any]] = []
    warned: set[str] = set()
    counts = devices or [session.default_devices(world)]
    if first and options["insecure_seed"] is not None:
        click.echo("Warning: --insecure-seed is given: keys are not secret.", err=True)
    if first and options["keep_transcript"] is not None:
        click.echo("Warning: --keep-transcript is given: values are not secret either.", err=True)

    def report(path: Path) -> None:
        from hpcfl.results import load
        from hpcfl.results.summary import summarise
        from hpcfl.results.tables import render_promises, render_run, warnings_of
        from hpcfl.rounds.failures import tell

        run = load(path)
        summary = summarise(run, asked.link)
        for sentence in warnings_of(summary):
            if sentence not in warned:
                click.echo(f"Warning: {sentence}.", err=True)
                warned.add(sentence)
        if as_json:
            summaries.append(summary.as_dict())
        else:
            parts = [render_run(summary), render_promises(run), tell(run), f"Results: {path}"]
            if asked.keep_transcript is not None:
                parts.append(f"Transcript of the last round, insecure: {asked.keep_transcript}")
            click.echo("\n\n".join(part for part in parts if part) + "\n")

    asked = Options.of_command(options)
    stream = launch.terminal_for_progress() if first else None
    with noting_signals(to_the_end=True):
        if stream is None:
            session.run(world, asked, counts, output, report, Spoken(), resume=resume)
        else:
            rounds = len(counts) * asked.planned_rounds
            with click.progressbar(length=rounds, label=asked.protocol, file=stream) as bar:
                spoken = Spoken(lambda: bar.update(1))
                session.run(world, asked, counts, output, report, spoken, resume=resume)
    if first and as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps({"runs": summaries}))
