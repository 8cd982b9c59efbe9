"""CPU time against bytes of a device for each protocol, and the values that it exposes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcfl.algorithms.aggregation import find_named
from hpcfl.errors import UsageError
from hpcfl.options.bench import DP_FEDAVG
from hpcfl.options.definition import make, names
from hpcfl.options.exposure import COLLUDING
from hpcfl.options.protocols import MaskingOptions
from hpcfl.plots import PlotOptions, looks, naming
from hpcfl.plots.style import finish, lacking_rounds, leave_room, new_figure, ticks
from hpcfl.privacy.population import Population, count_of
from hpcfl.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The smallest exposed fraction of a device's sent values that is printed.
_SOME = 5e-4

lacking = lacking_rounds


def draw(runs: Sequence[Run], asked: PlotOptions) -> Figure:
    """Return a panel for each number of devices and of parameters: a point for each run.

    The point is that of a device. Committee members and helpers have hollow points, joined to the
    point of their run. Labels give the percentage, if any, of a device's sent values that a curious
    server learns individually with a third of the devices colluding; it learns the rest in sums.
    """
    runs = naming.pooled(runs)
    panels = sorted({(run.devices, run.dim) for run in runs})
    chosen = ["devices", "dim", "degree", "min_cohort"]
    if not any(count > 1 for count in Counter(map(_place, runs)).values()):
        chosen += ["committee", "levels"]  # a protocol's own choices for a number of devices
    names = naming.labels(runs, without=chosen)
    looked = looks.of_lines(zip(map(naming.named, runs), names, strict=True))
    figure, axes = new_figure(asked, len(panels), height=2.7, sharey=True)
    for one, (devices, dim) in zip(axes, panels, strict=True):
        one.set(xscale="log", yscale="log", xlabel="sent in a round")
        for run, name in zip(runs, names, strict=True):
            if (run.devices, run.dim) != (devices, dim):
                continue
            first, *others = figures(run).values()
            look = looked[name].points()
            one.plot(*first, **look)
            for other in others:
                one.plot(*zip(first, other, strict=True), ":", color=look["color"], linewidth=0.8)
                one.plot(*other, **look | {"fillstyle": "full", "markerfacecolor": "white"})
        if len(panels) > 1:
            one.set_title(f"N = {devices:,}, d = {dim:,}")
    for one in axes:  # after all panels that share an axis have their points
        leave_room(one.xaxis)
        leave_room(one.yaxis)
        ticks(one.xaxis, "B")
        ticks(one.yaxis, "s")
    alone: dict[str, float] = {}
    for run, name in zip(runs, names, strict=True):
        alone[name] = max(alone.get(name, 0.0), exposed_alone(run) or 0.0)
    for name, style in looked.items():
        share = f", {100 * alone[name]:.3g} % learned alone" if alone[name] >= _SOME else ""
        axes[0].plot([], [], label=f"{name}{share}", **style.points())
    figure.supylabel("CPU time in a round", fontsize="medium")
    title = [naming.common(runs, ("devices", "dim"))]
    if any(len(figures(run)) > 1 for run in runs):
        title.append("joined by dots: a member of its committee, or a helper")
    finish(figure, asked, title, axes[0])
    return figure


def _place(run: Run) -> tuple[str, int, object]:
    return naming.named(run), run.devices, run.config.get("dim")


def figures(run: Run) -> dict[str, tuple[float, float]]:
    """Return a party's bytes sent and CPU seconds in a round, means over the measured rounds.

    Parties are a ``device`` and a committee ``member`` whose vectors are in the sum, and a
    ``helper`` that has not dropped out, if the run has them.
    """
    kept = run.measured
    survived, ordinary = run.survived[kept], run.ordinary[kept]
    sent, spent = run.bytes_up[kept].sum(axis=1), run.cpu_seconds[kept][..., :-1].sum(axis=1)
    found = {}
    for party, among in (("device", survived & ordinary), ("member", survived & ~ordinary)):
        if among.any():
            found[party] = float(sent[among].mean()), float(spent[among].mean())
    there = run.helped[kept]
    if there.any():
        up = run.helper_bytes_up[kept].sum(axis=1)
        cpu = run.helper_cpu_seconds[kept].sum(axis=1)
        found["helper"] = float(up[there].mean()), float(cpu[there].mean())
    return found


def exposed_alone(run: Run) -> float | None:
    """Return the fraction of an honest survivor's sent values that the server learns individually.

    It is computed by formula for the run's protocol, devices, density, dropouts and degree, with a
    third of the devices colluding. Return None for a protocol that does not come with hpcfl, or
    does not declare its exposure.
    """
    colluding = count_of(COLLUDING, run.devices)
    population = Population(run.devices, colluding, run.config.get("dropout") or 0.0)
    # Where all devices are neighbours, a file has N - 1 for the degree.
    there = {one: naming.value(run, one) and run.config[one] for one in names(MaskingOptions)}
    options = make(MaskingOptions, there)
    try:
        # With noise, a protocol hides at least as much as without.
        kind = find_named(run.protocol.removeprefix(f"{DP_FEDAVG}-"), None)
        masking = kind.masking(run.devices, options)
    except UsageError:
        return None
    return masking.against(population).alone_of_sent(population)
