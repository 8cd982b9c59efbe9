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
      hpcfl predict secagg --model cifar-cnn
      hpcfl predict secagg-graph --devices 1000000 --dim 1000000
      hpcfl predict secagg-graph --devices 4096 --ranks 1025 --network-gbps 100
    """
    from hpcfl.algorithms.aggregation import find
    from hpcfl.costmodel import tables
    from hpcfl.costmodel.calibration import default_path, load
    from hpcfl.costmodel.model import check_modelled, predict
    from hpcfl.costmodel.network import network_of
    from hpcfl.errors import UsageError
    from hpcfl.options.bench import DP_FEDAVG
    from hpcfl.options.definition import make, part
    from hpcfl.options.shared import check_length
    from hpcfl.results.linkmodel import LinkModel
    from hpcfl.rounds import usage
    from hpcfl.rounds.build import build, check_degree, without_dropouts

    name, wanted = typed["protocol"], given(typed)
    if name == DP_FEDAVG:
        raise UsageError(
            f"{DP_FEDAVG} adds its noise within a protocol, and this model is of protocols alone: "
            "predict that one, such as secagg; hpcfl sweep --dry-run says how long rounds with "
            "noise take"
        )
    check_length(wanted)
    asked = make(PredictOptions, without_dropouts(name, wanted))
    usage.check(wanted, name, asked, usage.of_protocol(name, asked))
    check_modelled(asked)
    find(asked.protocol)  # refuses a wrong name before a calibration is asked for
    lengths = asked.dim
    if asked.model is not None:
        from hpcfl.learning.models import parameters

        lengths = (parameters(asked.model),)
    known = load(asked.calibration or default_path())
    link, network = part(asked, LinkModel), network_of(asked)
    found = []
    for count in asked.devices:
        check_degree(asked, count)
        for length in lengths:
            built, _ = build(asked.protocol, asked, count, length)
            found.append(predict(built, known, link, asked.ranks, network))

    def text() -> str:
        if len(found) == 1:
            return tables.one(found[0], link, known, asked.model).text()
        return tables.side_by_side(found, link, known).text()

    about = {} if asked.model is None else {"model": asked.model}
    show(as_json, lambda: about | {"predictions": [one.as_dict() for one in found]}, text)
