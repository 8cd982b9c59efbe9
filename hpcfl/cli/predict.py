"""`hpcfl predict`: what a round would cost, without playing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcfl.cli.bench import DeviceCounts
from hpcfl.cli.options import link_options, protocol_options


@click.command("predict")
@click.argument("protocol")
@click.option(
    "--devices", type=DeviceCounts(), default="100", show_default=True, help="Numbers N of devices."
)
@click.option(
    "--dim",
    type=DeviceCounts(),
    metavar="D[,D...]",
    default="165000",
    show_default=True,
    help="Lengths d of the vectors.",
)
@click.option(
    "--ranks",
    type=int,
    default=1,
    show_default=True,
    help="Ranks of a run on this machine; 1: one process.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="File of hpcfl calibrate.  [default: this host's]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@protocol_options
@link_options
def command(
    protocol: str,
    devices: list[int],
    dim: list[int],
    ranks: int,
    calibration: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict bytes and seconds of a round of PROTOCOL, for any N, d and link.

    Counts of bytes and operations follow from the protocol; what an operation costs was measured
    by 'hpcfl calibrate'. Up to a million devices and a billion parameters take no time.

    \b
    Examples:
      hpcfl predict sparse
      hpcfl predict secagg --devices 25,50,75,100 --uplink-mbps 10
      hpcfl predict secagg-graph --devices 1000000 --dim 1000000
      mpirun -n 3 hpcfl calibrate ; hpcfl predict sparse --ranks 3
    """
    from hpcfl.system.launch import leave_to_first_rank

    if leave_to_first_rank():
        return

    from hpcfl.bench.experiment import Options
    from hpcfl.costmodel import tables
    from hpcfl.costmodel.calibration import default_path, load
    from hpcfl.costmodel.model import predict
    from hpcfl.errors import UsageError

    asked = Options(protocol, **options)
    if asked.dropout_model != "exact" or asked.dropout_phase is not None:
        raise UsageError(
            "the model is of devices that drop out before their upload, as many as --dropout says: "
            "leave out --dropout-model and --dropout-phase"
        )
    if asked.upload != "gather":
        raise UsageError("the model is of gathered uploads: leave out --upload")
    known = load(calibration or default_path())
    found = []
    for count in devices:
        for length in dim:
            built, _ = asked.build(count, length)
            found.append(predict(built, known, asked.link, ranks))
    if as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps({"predictions": [one.as_dict() for one in found]}))
    elif len(found) == 1:
        click.echo(tables.one(found[0], asked.link, known).text())
    else:
        click.echo(tables.side_by_side(found, asked.link, known).text())
