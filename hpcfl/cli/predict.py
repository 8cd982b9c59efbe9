"""`hpcfl predict`: what a round would cost, without playing it."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.cli.options import Command, given, options
from hpcfl.cli.terminal import alone, json_option, show
from hpcfl.options.predict import PredictOptions


@click.command("predict", cls=Command)
@click.argument("protocol")
@options(PredictOptions)
@json_option()
@alone
def command(as_json: bool, **typed: Any) -> None:
    """Predict bytes and seconds of a round of PROTOCOL, for any N, d and link.

    Bytes follow from the protocol; what its work costs was measured by 'hpcfl calibrate'. Up to a
    million devices and a billion parameters take no time.

    \b
    Examples:
      hpcfl predict sparse
      hpcfl predict secagg --devices 25,50,75,100 --uplink-mbps 10
      hpcfl predict secagg-graph --devices 4096 --ranks 1025 --network-gbps 100
    """
    from hpcfl import api

    found = api.predict(**given(typed))
    document = {"predictions": [one.as_dict() for one in found]}
    show(as_json, lambda: document, lambda: found.table().text())
