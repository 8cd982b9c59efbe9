"""`hpcfl advise`: which protocol to take."""

from __future__ import annotations

from typing import Any

import click

from hpcfl.cli.options import Command, given, options
from hpcfl.cli.terminal import alone, json_option, show
from hpcfl.options.advise import AdviseOptions


@click.command("advise", cls=Command)
@options(AdviseOptions)
@json_option()
@alone
def command(as_json: bool, **typed: Any) -> None:
    """Say which protocols do what is asked for, what they cost, and why the others do not.

    The one that costs least comes first. Costs are predicted, as by 'hpcfl predict', from what
    'hpcfl calibrate' has measured on this machine; they are of a round, on devices of their own.

    \b
    Examples:
      hpcfl advise --devices 1000 --dim 1000000 --uplink-mbps 10
      hpcfl advise --helpers 2 --criterion device-cpu
      hpcfl advise --security active --dropout 0.2
      hpcfl advise --alpha 0.1 --criterion upload --max-exposed 0.5
      hpcfl advise --epsilon 8 --rounds 100
    """
    from hpcfl import api
    from hpcfl.advice import tables
    from hpcfl.costmodel.calibration import default_path, load

    advice = api.advise(**given(typed))
    known = load(advice.asked.calibration or default_path())
    show(as_json, advice.as_dict, lambda: tables.table(advice, known).text())
