"""FedSGD-DPC's bound against the number of rounds, drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.algorithms.federated.queries import Bound
from hpcfl.optimize.answer import MOST_LINES, last_rounds, some_of
from hpcfl.plots import queries
from hpcfl.plots.style import PLAIN, Frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 200


def draw(bound: Bound, most: int | None, frame: Frame = PLAIN) -> Figure:
    """Return a figure of U over T, up to `most` or well beyond the best T, for three b at most."""
    lines = some_of(bound.constants.devices, MOST_LINES)
    if len(lines) > 3:
        lines = [lines[0], lines[len(lines) // 2], lines[-1]]
    rounds = np.geomspace(1, max(2, last_rounds(bound, most)), _POINTS)
    optima = []
    for b in lines:
        T = bound.best_rounds(b)
        optima.append((T, float(bound.value(T, b))) if math.isfinite(T) else None)
    values = np.array([bound.value(rounds, b) for b in lines])
    start = bound.constants.distance
    return queries.draw(rounds, lines, values, optima, _title(bound), start, frame)


def _title(bound: Bound) -> str:
    epsilons = sorted(set(bound.epsilons.tolist()))
    budget = ", ".join(f"{epsilon:g}" for epsilon in epsilons[:3])
    more = ", ..." if len(epsilons) > 3 else ""
    return f"FedSGD-DPC, {bound.mechanism}, N = {bound.constants.devices}, epsilon = {budget}{more}"
