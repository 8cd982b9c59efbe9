"""What protocols expose to a curious server, against the bytes of runs or against alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find, find_named
from hpcfl.errors import UsageError
from hpcfl.options.exposure import COLLUDING
from hpcfl.plots import naming
from hpcfl.plots.style import lacking_rounds, legend_below, line_style, new_figure
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population, count_of
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcfl.algorithms.aggregation.base import AggregationProtocol

ALPHAS = np.linspace(0.02, 0.5, 13)
DROPOUTS = (0.0, 0.1, 0.3, 0.45)
# Shares are by formula; the simulation that comes with it may be small.
_SAMPLES = 100


def lacking(run: Run, protocol: str | None = None, **_: object) -> str | None:
    """Return in words why a run cannot be drawn, None if it can."""
    reason = lacking_rounds(run)
    if reason is None:
        try:
            exposed_alone(run, protocol)
        except UsageError as error:
            reason = f"has no exposure: {error}"
    return reason


def exposed_alone(run: Run, protocol: str | None = None) -> float:
    """Return the share of what an honest survivor sends that the server learns by itself.

    By formula, for the run's protocol, devices, alpha, dropouts and degree, with a third of the
    devices colluding. `protocol` is the ``MODULE:CLASS`` of one that does not come with hpcfl. It
    is a UsageError if the run's options make no population, or its protocol does not say what it
    exposes.
    """
    devices = run.devices
    population = Population(devices, count_of(COLLUDING, devices), _number(run, "dropout", 0.0))
    # Noise hides no less than the protocol in which it is added.
    name = run.protocol.removeprefix("dp-fedavg-")
    kind = find_named(name, protocol)
    degree = _number(run, "degree", 0.0)
    masking = kind.masking(devices, _number(run, "alpha", 1.0), round(degree) or None)
    found = exposure(name, masking, population, dim=run.dim, samples=_SAMPLES)
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
        sent = run.survivor_bytes()
        if np.isnan(sent).all():  # all are members of a committee
            sent = run.survivor_bytes("member")
        look = line_style(number, 1) | {"markersize": 8, "linestyle": "none"}
        alone = 100 * exposed_alone(run, protocol)
        axes.plot([float(np.nanmean(sent)) / 1e3], [alone], label=label, **look)
    axes.set_xlim(left=0)
    axes.set_ylim(-3, 103)
    axes.set(
        xlabel="sent up by a survivor in a round, kB",
        ylabel="exposed alone, % of the values it sends",
    )
    axes.set_title("a curious server, a third of the devices colluding", fontsize=10)
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure


def draw_over_alpha(
    protocol: type[AggregationProtocol], devices: int, colluding: int, dropouts: Sequence[float]
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
        found = {}
        for alpha in ALPHAS.tolist():
            masking = protocol.masking(devices, alpha, None)
            # A cohort of one device hides nobody.
            if masking.cohort is None or alpha * devices >= 2:
                found[alpha] = exposure(protocol.name, masking, population, samples=_SAMPLES)
        style = line_style(number, len(found)) | {"label": f"theta = {dropout:g}"}
        left.plot([*found], [one.theorem_2 or 0.0 for one in found.values()], **style)
        right.plot([*found], [100 * one.alone_of_sent.value for one in found.values()], **style)
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
