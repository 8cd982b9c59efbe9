"""`hpcfl predict`: what a round would cost, without playing it."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.cli.options import given, options
from hpcfl.options.predict import PredictOptions


@click.command("predict")
@click.argument("protocol")
@options(PredictOptions)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool, **typed: Any) -> None:
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

    from hpcfl.costmodel import tables
    from hpcfl.costmodel.calibration import default_path, load
    from hpcfl.costmodel.model import predict
    from hpcfl.errors import UsageError
    from hpcfl.options.definition import make, part
    from hpcfl.results.linkmodel import LinkModel
    from hpcfl.rounds.build import build, without_dropouts

    asked = make(PredictOptions, without_dropouts(typed["protocol"], given(typed)))
    if asked.dropout_model != "exact" or asked.dropout_phase is not None:
        raise UsageError(
            "the model is of devices that drop out before their upload, as many as --dropout says: "
            "leave out --dropout-model and --dropout-phase"
        )
    if asked.upload != "gather":
        raise UsageError("the model is of gathered uploads: leave out --upload")
    known = load(asked.calibration or default_path())
    link = part(asked, LinkModel)
    found = []
    for count in asked.devices:
        for length in asked.dim:
            built, _ = build(asked.protocol, asked, count, length)
            found.append(predict(built, known, link, asked.ranks))
    if as_json:
        from hpcfl.report import jsontext

        click.echo(jsontext.dumps({"predictions": [one.as_dict() for one in found]}))
    elif len(found) == 1:
        click.echo(tables.one(found[0], link, known).text())
    else:
        click.echo(tables.side_by_side(found, link, known).text())
