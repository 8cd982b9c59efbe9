"""`hpcfl bench`: measure an aggregation protocol on vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.cli.options import Command, given, options
from hpcfl.cli.terminal import (
    footer_wanted,
    json_option,
    progress_bar,
    show_footer,
    warn,
    warn_of_insecurity,
)
from hpcfl.options.bench import DP_FEDAVG, BenchOptions


def _unused(protocol: str) -> set[str]:
    from hpcfl.algorithms.aggregation import find
    from hpcfl.benchmark.experiment import unused_by

    asked = BenchOptions(protocol)
    found = unused_by(asked)
    if protocol != DP_FEDAVG:
        found |= {"aggregate", "noise_multiplier"}
    return found if find(asked.summed_by).most_helpers else found | {"helper_mbps"}


@click.command("bench", cls=Command, lists={"Protocols": PROTOCOLS}, unused=_unused)
@click.argument("protocol", required=False)
@options(BenchOptions)
@json_option
def bench(as_json: bool, **typed: Any) -> None:
    """Measure PROTOCOL: its name, dp-fedavg, or your own class as MODULE:CLASS.

    'hpcfl bench --help' lists the protocols, and 'hpcfl bench PROTOCOL --help' shows only the
    options that the protocol has.

    Every round is checked, timed by phase and device, and written to an HDF5 file. Ctrl-C, SIGTERM
    and SIGUSR1 stop the run after the current round with exit status 75; --resume FILE continues.

    dp-fedavg adds discrete Gaussian noise within the protocol --aggregate (Kairouz et al. 2021).

    \b
    Examples:
      mpirun -n 101 hpcfl bench sparse
      mpirun -n 101 hpcfl bench secagg --devices 25,50,75,100
      mpirun -n 101 hpcfl bench sparse --rel-ci 0.05 --max-seconds 600
      mpirun -n 101 hpcfl bench --resume results/run.h5
    """
    from hpcfl.benchmark import session
    from hpcfl.cli.watching import Spoken
    from hpcfl.comm.world import connect
    from hpcfl.system import launch
    from hpcfl.system.interruption import noting_signals

    footed = footer_wanted(as_json)
    world = connect()
    wanted = world.agreed(lambda: given(typed))
    launch.work_together()
    first = world.rank == 0
    summaries: list[dict[str, Any]] = []
    options = session.asked(world, wanted)
    warn_of_insecurity(first and options.insecure_seed is not None)
    if first and options.keep_transcript is not None:
        warn("--keep-transcript is given: values are not secret either")

    def report(path: Path) -> None:
        from hpcfl.options.definition import part
        from hpcfl.results import load
        from hpcfl.results.linkmodel import LinkModel
        from hpcfl.results.summary import summarise
        from hpcfl.results.tables import render_promises, render_run
        from hpcfl.rounds.failures import tell

        run = load(path)
        summary = summarise(run, part(options, LinkModel))
        for sentence in summary.warnings:
            observer.warned(sentence)
        if as_json:
            summaries.append(summary.as_dict())
        else:
            parts = [render_run(summary), render_promises(run), tell(run), f"Results: {path}"]
            if options.keep_transcript is not None:
                parts.append(f"Transcript of the last round, insecure: {options.keep_transcript}")
            click.echo("\n\n".join(part for part in parts if part) + "\n")

    rounds = max(1, len(options.devices)) * options.planned_rounds
    with noting_signals(to_the_end=True), progress_bar(rounds, options.protocol) as bar:
        observer = Spoken(lambda: bar.update(1))
        session.run(
            *(world, options, report, observer), ended=show_footer if footed else lambda path: None
        )
    if first and as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps({"runs": summaries}))
