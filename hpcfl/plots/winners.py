"""A map of who is first, over the length of vectors and something else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.options.advise import AdviseOptions
from hpcfl.plots import looks
from hpcfl.plots.style import (
    PLAIN,
    Frame,
    applied,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
)
from hpcfl.report.formats import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"devices": "devices N", "uplink-mbps": "uplink of a device, Mbit/s"}
_LEAST = {"time": "shortest round", "upload": "least upload", "device-cpu": "least device CPU"}


@applied()
def draw(
    found: Sequence[Sequence[str | None]],
    sizes: Sequence[int],
    values: Sequence[float],
    asked: AdviseOptions,
    frame: Frame = PLAIN,
) -> Figure:
    """Return a map with a tile for each setting: a row for each value, a column for each d.

    A tile has the colour and the marker of the protocol that is first, and none where no protocol
    qualifies.
    """
    from matplotlib.colors import ListedColormap

    figure, (axes,) = new_figure(frame, height=3.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    names = sorted({name for row in found for name in row if name is not None})
    looked = looks.of_protocols(names)
    across, up = _edges(sizes), _edges(values)
    for name in names:
        there = np.array([[one == name for one in row] for row in found])
        look = looked[name]
        tiles = np.ma.masked_where(~there, np.ones(there.shape))
        paint = ListedColormap([look.colour])
        axes.pcolormesh(across, up, tiles, cmap=paint, alpha=0.35, linewidth=0, rasterized=True)
        rows, columns = np.nonzero(there)
        points = look.points() | {"markersize": 3, "label": name}
        axes.plot(np.array(sizes)[columns], np.array(values)[rows], **points)
    axes.set(xlabel="length d of the vectors", ylabel=_NAMES[asked.over])
    axes.set_xlim(across[0], across[-1])
    axes.set_ylim(up[0], up[-1])
    readable_ticks(axes)
    set_title(figure, frame, _title(asked))
    legend_below(figure, frame, axes, sample=1.5)
    return figure


def _edges(values: Sequence[float]) -> list[float]:
    """Return the edges of tiles around values that lie apart by one factor."""
    logs = np.log(values)
    between = (logs[1:] + logs[:-1]) / 2
    edges = [2 * logs[0] - between[0], *between, 2 * logs[-1] - between[-1]]
    return [math.exp(edge) for edge in edges]


def _title(asked: AdviseOptions) -> str:
    """Return what is least, and all that decides who qualifies and is first."""
    parts = [f"{_LEAST[asked.criterion]}, predicted"]
    if asked.over != "devices":
        parts.append(f"N = {asked.devices}")
    else:
        parts.append(f"{asked.uplink_mbps:g} Mbit/s up")
    parts.append(f"{asked.downlink_mbps:g} Mbit/s down")
    if asked.latency_ms:
        parts.append(f"{asked.latency_ms:g} ms latency")
    parts.append(f"{100 * asked.dropout:g} % drop out")
    parts.append(f"{asked.security} server")
    parts.append(f"{100 * asked.gamma:g} % collude")
    parts.append(f"at most {100 * asked.max_exposed:g} % exposed alone")
    if asked.helpers:
        parts.append(counted(asked.helpers, "helper"))
    if asked.alpha is not None:
        parts.append(f"alpha = {asked.alpha:g}")
    if asked.accuracy is not None:
        parts.append(f"accuracy {asked.accuracy:g}")
    if asked.epsilon is not None:
        parts.append(f"epsilon = {asked.epsilon:g} over {counted(asked.rounds, 'round')}")
    # Lines are not broken within a part.
    return ", ".join(part.replace(" ", "\xa0") for part in parts)
