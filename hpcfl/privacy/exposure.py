"""What a curious server learns of each honest device in a round: formulas beside a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hpcfl.errors import UsageError
from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.privacy import formulas, simulate
from hpcfl.privacy.cohorts import below_floor_probability
from hpcfl.privacy.distributions import Counts, Floats
from hpcfl.privacy.masking import Closed, Masking
from hpcfl.privacy.population import Population

# The formulas of SparseSecAgg take time quadratic in the number of devices.
MAX_DEVICES = 10_000

# Half the width of a 95 % confidence interval, in standard errors.
_NORMAL_95 = 1.959964
# Probabilities of anonymity sets below this are not listed, unless the simulation met one.
_LISTED = 1e-6


@dataclass(frozen=True)
class Figure:
    """One quantity, by formula and by simulation."""

    formula: float | None  # the exact value; None where no closed form is known
    simulation: float | None  # the estimate; None where there was nothing to estimate it from
    # Of the estimate. That of a share is at least what one more event would have added: a share
    # that was never met may still be as large as a few of these.
    standard_error: float | None

    @property
    def difference(self) -> float | None:
        """Simulation minus formula."""
        if self.formula is None or self.simulation is None:
            return None
        return self.simulation - self.formula

    @property
    def margin(self) -> float | None:
        """Half the width of the simulation's 95 % confidence interval."""
        return None if self.standard_error is None else _NORMAL_95 * self.standard_error

    @property
    def value(self) -> float:
        """The formula's value where there is one, else the simulation's, else NaN."""
        known = self.simulation if self.formula is None else self.formula
        return math.nan if known is None else known

    def as_dict(self) -> dict[str, float | None]:
        """Return everything about the quantity, for JSON."""
        return asdict(self) | {"difference": self.difference}


@dataclass(frozen=True)
class Exposure:
    """What a round of a protocol exposes to a curious server and the devices that collude with it.

    A *contributor* at a coordinate is an honest device that survives and sends it. The *anonymity
    set* of a value that a contributor sent is the set of contributors whose sum the server learns
    instead of the value: its component in the coordinate's masking graph.

    All but `contributors`, `alone_at_coordinate` and `mean_set` are fractions.
    """

    protocol: str
    population: Population
    dim: int
    alpha: float | None  # fraction of the coordinates that a device sends; None where it sends all
    degree: int | None  # neighbours of a device in the masking graph; None if all are
    cohort: int | None  # devices in a cohort; None without cohorts
    masked: bool
    between_devices: bool  # whether masks are what two devices have in common
    samples: int  # coordinates that were simulated, each of a round of its own
    seed: int
    theorem_2: float | None  # SparseSecAgg's T, where there is an alpha: a number of contributors
    contributors: Figure  # expected number at a coordinate
    sole: Figure  # of coordinates with exactly one contributor (the paper's Figures 4(b), 5(c))
    sole_of_dim: Figure  # of an honest survivor's d coordinates, where it is the only contributor
    split: Figure  # of coordinates at which the server learns more than one sum of contributors
    sent: Figure  # of the d coordinates that an honest survivor sends
    # Of the values that an honest survivor sends, and of its d coordinates, those exposed alone:
    # the anonymity set has one member.
    alone_of_sent: Figure
    alone_of_dim: Figure
    # Expected number of values exposed alone at a coordinate. It bounds the probability that there
    # is any (union bound); for secagg-graph that is one probability a round.
    alone_at_coordinate: Figure
    mean_set: Figure  # mean size of the anonymity set of a sent value
    # Distribution of that size, less those below 1e-6 that were not met; and for sizes from the
    # first to the second number: 1, 2, 3, 4, 5 to 8, 9 to 16, ...
    sizes: dict[int, Figure]
    size_ranges: dict[tuple[int, int], Figure]
    floor: int | None = None  # size that was asked for
    below_floor: Figure | None = None  # of sent values whose set has fewer members than that
    # For cohorts and a floor: probability that a cohort has fewer honest survivors, and the union
    # bound for the N cohorts of a round.
    cohort_below_floor: float | None = None
    round_below_floor: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON; counts of an honest survivor's d coordinates included."""
        found = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}
        found |= found.pop("population") | {
            "honest": self.population.honest,
            "mean_honest_survivors": self.population.mean_honest_survivors,
        }
        del found["masked"], found["between_devices"]
        found["sizes"] = [{"size": s} | figure.as_dict() for s, figure in self.sizes.items()]
        found["size_ranges"] = [
            {"smallest": low, "largest": high} | figure.as_dict()
            for (low, high), figure in self.size_ranges.items()
        ]
        for name in ("sole", "alone"):
            figure: Figure = getattr(self, f"{name}_of_dim")
            found[f"{name}_count"] = scaled(figure, self.dim).as_dict()
        return found


def exposure(
    protocol: str,
    masking: Masking,
    population: Population,
    *,
    dim: int = DEFAULT_DIM,
    floor: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = lambda done: None,
) -> Exposure:
    """Return what a round exposes, of a protocol that masks coordinates in this way.

    Dropouts happen after key sharing, before the upload. The number of coordinates enters counts
    only; anonymity sets with fewer members than `floor` are counted; so many samples of a
    coordinate are simulated, :func:`default_samples` by default, and `progress` is told after each
    few how many more are done.
    """
    masking = masking.against(population)
    devices, alpha, cohort = population.devices, masking.alpha, masking.cohort
    samples = default_samples(devices) if samples is None else samples
    if devices > MAX_DEVICES:
        raise UsageError(f"the number of devices is {devices}; it must be at most {MAX_DEVICES}")
    figures = _compare(
        masking.closed(population),
        simulate.simulate(population, masking.draw, samples, seed, progress),
        population,
        floor,
    )
    if cohort is not None and floor is not None:
        figures["cohort_below_floor"] = below_floor_probability(population, cohort, floor)
        figures["round_below_floor"] = below_floor_probability(
            population, cohort, floor, blocks=devices
        )
    expected = None
    if alpha is not None:
        expected = formulas.theorem_2(alpha, population.dropout, population.honest)
    return Exposure(
        protocol=protocol,
        population=population,
        dim=dim,
        alpha=alpha,
        degree=masking.degree,
        cohort=cohort,
        masked=masking.masks,
        between_devices=masking.between_devices,
        samples=samples,
        seed=seed,
        theorem_2=expected,
        floor=floor,
        **figures,
    )


def default_samples(devices: int) -> int:
    """Return a number of samples that takes seconds: 100,000, fewer with over 200 devices."""
    return max(1000, min(100_000, 20_000_000 // devices))


def scaled(figure: Figure, factor: float) -> Figure:
    """Return a figure in another unit."""
    parts = (figure.formula, figure.simulation, figure.standard_error)
    return Figure(*(None if part is None else factor * part for part in parts))


def _compare(
    closed: Closed,
    seen: simulate.Observations,
    population: Population,
    floor: int | None,
) -> dict[str, Any]:
    """Return the figures of :class:`Exposure`, by name."""
    values = seen.size * seen.components  # one for every member
    everywhere = np.ones(seen.survivors.size)
    contributors = seen.per_sample(values)
    alone = seen.per_sample(np.where(seen.size == 1, values, 0))
    parts = seen.per_sample(seen.components)
    sole = (contributors == 1).astype(np.float64)
    mean = population.mean_honest_survivors
    alone_of_sent = closed.alone_of_dim / closed.sent
    sizes = closed.sizes
    likely = [] if sizes is None else np.flatnonzero(sizes >= _LISTED).tolist()
    listed = sorted({*likely, *np.unique(seen.size).tolist()})

    def between(low: int, high: int) -> Figure:
        """Return the share of sent values whose anonymity set has from `low` to `high` members."""
        return _share(
            None if sizes is None else float(sizes[low : high + 1].sum()),
            seen.per_sample(np.where((low <= seen.size) & (seen.size <= high), values, 0)),
            contributors,
            event=high,
        )

    figures: dict[str, Any] = {
        "contributors": _ratio(closed.contributors, contributors, everywhere),
        "sole": _share(closed.sole, sole, everywhere),
        "sole_of_dim": _share(
            None if closed.sole is None else closed.sole / mean, sole, seen.survivors
        ),
        "split": _share(closed.split, (parts > 1).astype(np.float64), everywhere),
        "sent": _share(closed.sent, contributors, seen.survivors),
        "alone_of_sent": _share(alone_of_sent, alone, contributors),
        "alone_of_dim": _share(closed.alone_of_dim, alone, seen.survivors),
        "alone_at_coordinate": _share(mean * closed.alone_of_dim, alone, everywhere),
        "mean_set": _ratio(
            None if sizes is None else float(sizes @ np.arange(sizes.size)),
            seen.per_sample(values * seen.size),
            contributors,
        ),
        "sizes": {size: between(size, size) for size in listed},
        "size_ranges": {
            (low, high): between(low, high)
            for low, high in _ranges(max(listed, default=1))
            if any(low <= size <= high for size in listed)
        },
    }
    if floor is not None:
        figures["below_floor"] = between(1, floor - 1)
    return figures


def _ranges(largest: int) -> list[tuple[int, int]]:
    """Return the first and last sizes of ranges that reach `largest`."""
    ranges = [(1, 1), (2, 2)]
    while ranges[-1][1] < largest:
        low = ranges[-1][1] + 1
        ranges.append((low, low) if low < 5 else (low, 2 * (low - 1)))
    return ranges


def _ratio(formula: float | None, parts: Floats, wholes: Floats | Counts) -> Figure:
    """Compare with the sum of `parts` over the sum of `wholes`, each one for every sample.

    The standard error is that of a ratio estimator, in which samples are independent, not the
    values within one (Cochran 1977, ch. 6).
    """
    whole, samples = float(wholes.sum()), parts.size
    if whole == 0:
        return Figure(formula, None, None)
    ratio = float(parts.sum()) / whole
    squares = float(np.square(parts - ratio * wholes).sum())
    return Figure(formula, ratio, math.sqrt(squares * samples / max(1, samples - 1)) / whole)


def _share(
    formula: float | None, parts: Floats, wholes: Floats | Counts, event: float = 1
) -> Figure:
    """Compare as :func:`_ratio`, where one event adds `event` to the parts.

    What was never met has no spread, but it is known only to within about one event.
    """
    found = _ratio(formula, parts, wholes)
    if found.standard_error is None:
        return found
    least = event / float(wholes.sum())
    return replace(found, standard_error=max(found.standard_error, least))


def _plain(value: Any) -> Any:
    if isinstance(value, Figure):
        return value.as_dict()
    return asdict(value) if isinstance(value, Population) else value
