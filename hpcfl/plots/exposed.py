"""What runs sent against what their protocols expose to a curious server."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.algorithms.aggregation import find_named
from hpcfl.errors import UsageError
from hpcfl.plots import naming
from hpcfl.plots.style import lacking_rounds, legend_below, line_style, new_figure
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population, count_of
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The papers' fraction of colluding devices.
COLLUDING = Fraction(1, 3)
# The share is by formula; the simulation that comes with it may be small.
_SAMPLES = 100


def lacking(run: Run, protocol: str | None = None, **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    try:
        exposed_alone(run, protocol)
    except UsageError as error:
        return lacking_rounds(run) or f"has no exposure: {error}"
    return lacking_rounds(run)


def exposed_alone(run: Run, protocol: str | None = None) -> float:
    """Return the share of what an honest survivor sends that the server learns by itself.

    By formula, for the run's protocol, devices, alpha, dropouts and degree, with a third of the
    devices colluding. `protocol` is the ``MODULE:CLASS`` of one that does not come with hpcfl. It
    is a UsageError if the run's options make no population, or its protocol does not say what it
    exposes.
    """
    devices = run.devices
    population = Population(devices, count_of(COLLUDING, devices), _number(run, "dropout", 0.0))
    kind = find_named(run.protocol, protocol)
    degree = _number(run, "degree", 0.0)
    masking = kind.masking(devices, _number(run, "alpha", 1.0), round(degree) or None)
    found = exposure(run.protocol, masking, population, dim=run.dim, samples=_SAMPLES)
    return found.alone_of_sent.value


def _number(run: Run, name: str, default: float) -> float:
    """Return an option's value, the default where it has none."""
    value = run.config.get(name)
    return float(value) if isinstance(value, int | float) else default


def draw(runs: Sequence[Run], protocol: str | None = None) -> Figure:
    """Return a point for each run: bytes a survivor sent, and what is exposed alone of them."""
    figure, (axes,) = new_figure()
    labels = naming.labels(runs, naming.TOLD_APART)
    for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
        sent = run.bytes_up.sum(axis=1)[run.measured][run.survived[run.measured]]
        look = line_style(number, 1) | {"markersize": 8, "linestyle": "none"}
        alone = 100 * exposed_alone(run, protocol)
        axes.plot([float(np.mean(sent)) / 1e3], [alone], label=label, **look)
    axes.set_xlim(left=0)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("sent up by a survivor in a round, kB")
    axes.set_ylabel("exposed alone, % of the values it sends")
    axes.set_title("a curious server, a third of the devices colluding", fontsize=10)
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure
