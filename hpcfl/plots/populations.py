"""The links and processors of a population, as cumulative distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.plots import PlotOptions, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AXES = {
    "uplink_mbps": "uplink, Mbit/s",
    "downlink_mbps": "downlink, Mbit/s",
    "latency_ms": "latency, ms",
    "compute": "computing, factor",
}


def draw(name: str, table: Mapping[str, Sequence[Any]]) -> Figure:
    """Return a figure of the fraction of the devices at or below each value."""
    asked = PlotOptions()
    with style.applied():
        figure, axes = style.new_figure(asked, 4, narrowest=2.5)
    for axis, (column, title) in zip(axes, _AXES.items(), strict=True):
        values = np.sort(np.asarray(table[column], np.float64))
        axis.step(values, np.arange(1, values.size + 1) / values.size, where="post")
        axis.set_xscale("log" if values[0] > 0 else "linear")
        style.ticks(axis.xaxis)
        axis.set_xlabel(title)
        axis.set_ylim(0, 1)
        axis.set_ylabel("fraction of devices")
    style.finish(figure, asked, [f"{name}, {values.size:,} devices"])
    return figure
