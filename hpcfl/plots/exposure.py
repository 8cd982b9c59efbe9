"""What protocols expose to a curious server, against the bytes of runs or against alpha."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.algorithms.aggregation import PROTOCOLS, find, find_named
from hpcfl.errors import UsageError
from hpcfl.options.exposure import COLLUDING
from hpcfl.plots import looks, naming
from hpcfl.plots.style import (
    BYTES,
    PLAIN,
    Frame,
    applied,
    lacking_rounds,
    leave_room,
    legend_below,
    new_figure,
    readable_ticks,
    set_title,
    unit_of,
)
from hpcfl.privacy.exposure import exposure
from hpcfl.privacy.population import Population, count_of
from hpcfl.results.columns import TOLD_APART
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


def draw(runs: Sequence[Run], frame: Frame = PLAIN, protocol: str | None = None) -> Figure:
    """Return a point for each run: bytes a survivor sent, and what is exposed alone of them."""
    figure, (axes,) = new_figure(frame, height=2.8)
    labels = naming.labels(runs, ("dim", *TOLD_APART), called=frame.called)
    looked = looks.of_lines(zip(map(naming.named, runs), labels, strict=True))
    sent = [_sent(run) for run in runs]
    unit, unit_name = unit_of(sent, BYTES)
    alone = [100 * exposed_alone(run, protocol) for run in runs]
    points = [([x / unit], [y]) for x, y in zip(sent, alone, strict=True)]
    for label, (x, y), width in zip(labels, points, looks.widths(points), strict=True):
        axes.plot(x, y, **looked[label].points() | width)
        axes.plot([], [], label=label, **looked[label].points())
    axes.set_xscale("log")
    leave_room(axes, x=True, y=False)
    axes.set_ylim(-6, 106)
    axes.set(
        xlabel=f"sent up by a survivor in a round, {unit_name}",
        ylabel="exposed alone, % of the values it sends",
    )
    axes.grid(alpha=0.3)
    readable_ticks(axes)
    usual = naming.usual(runs, ("dim", *TOLD_APART))
    set_title(figure, frame, "; ".join(("a third of the devices colluding", *usual)))
    legend_below(figure, frame, axes, sample=1.5)
    return figure


def _sent(run: Run) -> float:
    sent = run.survivor_bytes()
    if np.isnan(sent).all():  # all are members of a committee
        sent = run.survivor_bytes("member")
    return float(np.nanmean(sent))


@applied()
def draw_over_alpha(
    protocol: type[AggregationProtocol],
    devices: int,
    colluding: int,
    dropouts: Sequence[float],
    frame: Frame = PLAIN,
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
    figure, (left, right) = new_figure(frame, 2)
    look = looks.of_protocols([protocol.name])[protocol.name]
    for number, dropout in enumerate(dropouts):
        population = Population(devices, colluding, dropout)
        found = {}
        for alpha in ALPHAS.tolist():
            masking = protocol.masking(devices, alpha, None)
            # A cohort of one device hides nobody.
            if masking.cohort is None or alpha * devices >= 2:
                found[alpha] = exposure(protocol.name, masking, population, samples=_SAMPLES)
        style = replace(look, line=number).curve(len(found)) | {"label": f"theta = {dropout:g}"}
        left.plot([*found], [one.contributors.value for one in found.values()], **style)
        right.plot([*found], [100 * one.alone_of_sent.value for one in found.values()], **style)
    left.set_ylabel("honest contributors at a coordinate")
    right.set_ylabel("sent values exposed alone, %")
    for axes in (left, right):
        axes.set_xlabel("alpha")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        readable_ticks(axes)
    set_title(figure, frame, f"{protocol.name}, N = {devices}, {colluding} colluding")
    legend_below(figure, frame, left)
    return figure
