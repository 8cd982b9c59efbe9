"""The paper's privacy guarantee T, and what is exposed all the same, against alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find
from hpcfl.errors import UsageError
from hpcfl.plots.style import line_style, new_figure
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcfl.algorithms.aggregation.base import AggregationProtocol

ALPHAS = np.linspace(0.02, 0.5, 13)
DROPOUTS = (0.0, 0.1, 0.3, 0.45)
# The lines are drawn by formula; the simulation that comes with it may be small.
_SAMPLES = 100


def draw(
    protocol: type[AggregationProtocol],
    devices: int,
    colluding: int,
    dropouts: Sequence[float],
) -> Figure:
    """Return two panels over alpha: contributors at a coordinate, and values exposed alone.

    There is a line for every dropout rate theta. A protocol without alpha is a UsageError.
    """
    if not protocol.sparse_upload:
        known = [name for name in PROTOCOLS if find(name).sparse_upload]
        raise UsageError(
            f"{protocol.name} sends all coordinates, so there is nothing to draw over alpha; "
            f"choose {' or '.join(known)}"
        )
    figure, (left, right) = new_figure(9.6, 3.8, columns=2)
    for number, dropout in enumerate(dropouts):
        population = Population(devices, colluding, dropout)
        maskings = {alpha: protocol.masking(devices, alpha, None) for alpha in ALPHAS.tolist()}
        # A cohort of one device hides nobody.
        alphas = [
            alpha
            for alpha, masking in maskings.items()
            if masking.cohort is None or alpha * devices >= 2
        ]
        found = [
            exposure(protocol.name, maskings[alpha], population, samples=_SAMPLES)
            for alpha in alphas
        ]
        style = line_style(number, len(alphas)) | {"label": f"theta = {dropout:g}"}
        left.plot(alphas, [one.theorem_2 or 0.0 for one in found], **style)
        right.plot(alphas, [100 * one.alone_of_sent.value for one in found], **style)
    left.set_ylabel("honest contributors, T of Theorem 2")
    right.set_ylabel("sent values exposed alone, %")
    for axes in (left, right):
        axes.set_xlabel("alpha")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"{protocol.name}, N = {devices}, {colluding} colluding", fontsize=10)
    return figure
