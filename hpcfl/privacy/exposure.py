"""What a curious server learns about each honest device in a round, by formula and by simulation.

The simulation draws the masking graph of one coordinate many times and counts its components. Each
sample is one coordinate of a separate round, with its own dropouts, device order and selecting
pairs. The first devices are the colluding ones; protocols treat all devices alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcfl.privacy.distributions import Counts, Floats
from hpcfl.privacy.masking import Flags, Masking, random_orders
from hpcfl.privacy.population import Population
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.report.table import RULE, Column, Facts, Table, label
from hpcfl.values import asdict, dataclass

# Devices simulated at once, over all samples; they fit into the processor's caches.
_AT_ONCE = 1 << 19
# Ranges of anonymity-set sizes: 1, 2, 3, 4, 5 to 8, 9 to 16, ...
_RANGES = [*((n, n) for n in range(1, 5)), *((2**k + 1, 2 ** (k + 1)) for k in range(2, 14))]
# Half the width of a 95 % confidence interval, in standard errors.
_NORMAL_95 = 1.959964

FIGURES = {
    "contributors": "contributors at a coordinate",
    "sole": "coordinates with exactly one contributor",
    "split": "coordinates with more than one sum",
    "sent": "sent, of a device's d",
    "alone_of_sent": "exposed alone, of what it sends",
    "alone_of_dim": "exposed alone, of its d",
    "mean_set": "anonymity set of a sent value, mean",
}
"""What is found of every protocol, by name. The device is an honest survivor."""


@dataclass(frozen=True)
class Figure:
    """One quantity, by formula and by simulation."""

    formula: float | None  # the exact value; None where no closed form is known
    simulation: float | None  # the estimate; None if no sample allows one
    # Standard error of the estimate. For a share it is at least the effect of one more event: a
    # share that was never observed may still be a few standard errors large.
    standard_error: float | None

    @property
    def value(self) -> float:
        """The value by formula if there is one, else by simulation, else NaN."""
        known = self.simulation if self.formula is None else self.formula
        return math.nan if known is None else known


@dataclass(frozen=True)
class Exposure:
    """What a round of a protocol exposes to a curious server and the devices that collude with it.

    A *contributor* at a coordinate is an honest survivor that sends the coordinate. The
    *anonymity set* of a sent value is the set of contributors whose sum the server learns instead
    of the value: the value's component in the coordinate's masking graph. A value in a set of 1
    is exposed alone.
    """

    protocol: str
    population: Population
    masking: Masking
    samples: int  # number of simulated coordinates
    seed: int
    figures: dict[str, Figure]  # keys as in `FIGURES`
    # (low, high, share of the sent values whose set has low to high members): 1, ..., 5 to 8, ...
    sizes: tuple[tuple[int, int, Figure], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-ready dict."""
        found, masking = asdict(self), self.masking
        of_masking = {"alpha": masking.alpha, "degree": masking.degree, "cohort": masking.cohort}
        return found | found.pop("figures") | asdict(self.population) | of_masking


def exposure(
    protocol: str,
    masking: Masking,
    population: Population,
    *,
    samples: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = lambda done: None,
) -> Exposure:
    """Return what a round of a protocol exposes if it masks coordinates according to `masking`.

    Devices drop out after key sharing and before the upload. `samples` coordinates are simulated
    (default: :func:`default_samples`); after each batch, `progress` receives the batch's number
    of samples.
    """
    masking = masking.against(population)
    samples = default_samples(population.devices) if samples is None else samples
    survivors, sample, size, components = simulate(population, masking, samples, seed, progress)
    values = size * components  # one for every member
    everywhere = np.ones(samples)

    def each(of_rows: Counts | Floats) -> Floats:
        return np.bincount(sample, of_rows, samples).astype(np.float64)

    contributors, alone = each(values), each(np.where(size == 1, values, 0))
    sent, alone_of_sent = masking.sent(population), masking.alone_of_sent(population)
    figures = {
        "contributors": _ratio(sent * population.mean_honest_survivors, contributors, everywhere),
        "sole": _ratio(masking.sole(population), contributors == 1, everywhere, event=1),
        "split": _ratio(None, each(components) > 1, everywhere, event=1),
        "sent": _ratio(sent, contributors, survivors, event=1),
        "alone_of_sent": _ratio(alone_of_sent, alone, contributors, event=1),
        "alone_of_dim": _ratio(sent * alone_of_sent, alone, survivors, event=1),
        "mean_set": _ratio(None, each(values * size), contributors),
    }
    sizes = []
    for low, high in _RANGES:
        inside = (low <= size) & (size <= high)
        if inside.any():
            part = _ratio(None, each(np.where(inside, values, 0)), contributors, event=high)
            sizes.append((low, high, part))
    return Exposure(protocol, population, masking, samples, seed, figures, tuple(sizes))


def default_samples(devices: int) -> int:
    """Return a sample count that takes seconds to simulate: 100,000, or fewer above 200 devices."""
    return max(1000, min(100_000, 20_000_000 // devices))


def simulate(
    population: Population,
    masking: Masking,
    samples: int,
    seed: int,
    progress: Callable[[int], object] = lambda done: None,
) -> tuple[Counts, Counts, Counts, Counts]:
    """Simulate `samples` coordinates, each in a separate round.

    Return the number of honest survivors of each sample, and three parallel arrays: sample index,
    component size, and number of such components. Each (sample, size) pair occurs once.
    """
    generator = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // population.devices)
    parts = []
    for first in range(0, samples, step):
        honest = _honest_survivors(population, min(step, samples - first), generator)
        parts.append(_observe(honest, *masking.draw(honest, generator), first))
        progress(len(honest))
    survivors, sample, size, components = map(np.concatenate, zip(*parts, strict=True))
    return survivors, sample, size, components


def _honest_survivors(
    population: Population, samples: int, generator: np.random.Generator
) -> Flags:
    """Draw the dropouts and return a mask of the honest survivors, shape (samples, N)."""
    devices, colluding = population.devices, population.colluding
    stays = np.ones((samples, devices), np.bool_)
    if population.model == "bernoulli":
        stays = generator.random((samples, devices)) >= population.dropout
    else:
        safe = colluding if population.model == "targeted" else 0
        gone = safe + random_orders(samples, devices - safe, generator)[:, : population.dropped]
        np.put_along_axis(stays, gone, False, axis=1)
    stays[:, :colluding] = False
    return stays


def _observe(
    honest: Flags, sends: Flags, left: Counts, right: Counts, first: int
) -> tuple[Counts, Counts, Counts, Counts]:
    """Return the result of `simulate` for one batch, its samples numbered from `first`."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    devices, flat = honest.shape[1], honest.reshape(-1)
    between = flat[left] & flat[right]
    edges = np.ones(np.count_nonzero(between)), (left[between], right[between])
    _, component = connected_components(coo_matrix(edges, (flat.size, flat.size)), directed=False)
    # The first member of a component identifies the sample.
    contributes = np.flatnonzero(honest & sends)
    _, members, sizes = np.unique(component[contributes], return_index=True, return_counts=True)
    sample = contributes[members] // devices
    both, count = np.unique(sample * (devices + 1) + sizes, return_counts=True)
    sample, size = np.divmod(both, devices + 1)
    return honest.sum(axis=1), first + sample, size, count


def _ratio(
    formula: float | None, parts: Floats | Flags, wholes: Floats | Counts, event: float = 0
) -> Figure:
    """Return `formula` beside the estimate sum(parts) / sum(wholes), summed over samples.

    The standard error is that of a ratio estimator: samples are independent, values within a
    sample are not (Cochran 1977, ch. 6). For a share, to which one event adds `event`, it is at
    least `event` / sum(wholes).
    """
    whole, samples = float(wholes.sum()), parts.size
    if whole == 0:
        return Figure(formula, None, None)
    ratio = float(parts.sum()) / whole
    squares = float(np.square(parts - ratio * wholes).sum())
    spread = math.sqrt(squares * samples / max(1, samples - 1))
    return Figure(formula, ratio, max(spread, event) / whole)


def table(found: Exposure) -> Table:
    """Return a table of all figures, each by formula and by simulation."""

    def row(name: str, figure: Figure) -> list[Any]:
        error = figure.standard_error
        margin = None if error is None else _NORMAL_95 * error
        return [name, figure.formula, figure.simulation, margin]

    rows: list[Any] = [row(title, found.figures[name]) for name, title in FIGURES.items()]
    rows.append(RULE)
    for low, high, figure in found.sizes:
        span = str(low) if low == high else f"{low} to {high}"
        rows.append(row(f"sent values in a set of {span}", figure))
    columns = (
        label("what", ""),
        *(Column(name, name, format=formats.number) for name in ("formula", "simulation")),
        Column("margin", "± 95 %", format=lambda value: formats.number(value, 2)),
    )
    notes = [
        "device: an honest survivor; contributor: one that sends the coordinate",
        "anonymity set of a sent value: the contributors whose sum the server learns instead",
        "exposed alone: sent in a set of 1; more than one sum: in more than one set",
    ]
    return Table(columns, rows, notes=notes)


def render(found: Exposure) -> str:
    """Return an exposure as text: its parameters and its table."""
    who, masking = found.population, found.masking
    facts = {
        "protocol": found.protocol,
        "devices N": f"{who.devices}, of which {who.colluding} collude with the server",
        "dropouts": f"theta = {who.dropout:g}, {who.model}; "
        f"{who.mean_honest_survivors:.4g} honest survivors on average",
        "alpha": masking.alpha,
        "cohort m": masking.cohort,
        "masks": masking.words,
        "simulation": f"{counted(found.samples, 'coordinate')}, each of its own round; "
        f"seed {found.seed}",
    }
    return f"{Facts(facts).text()}\n\n{table(found).text()}"
