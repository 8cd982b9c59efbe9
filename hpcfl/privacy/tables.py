"""What a round exposes, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfl.privacy.exposure import Exposure, Figure, scaled
from hpcfl.report import formats
from hpcfl.report.formats import counted
from hpcfl.report.table import RULE, Column, Facts, Table, label

_FIGURES = (
    label("what", ""),
    Column("formula", "formula", format=formats.number),
    Column("simulation", "simulation", format=formats.number),
    Column("margin", "± 95 %", format=lambda value: formats.number(value, 2)),
    Column("difference", "difference", format=formats.change),
)


def table(found: Exposure) -> Table:
    """Return everything about an exposure, formulas beside simulation."""
    t = found.theorem_2
    rows: list[Sequence[Any]] = [
        _row("contributors at a coordinate", found.contributors),
        *([] if t is None else [_row("SparseSecAgg's T (Theorem 2)", Figure(t, None, None))]),
        _row("coordinates with exactly one contributor", found.sole),
        _row("a device's d, where it is that one", found.sole_of_dim),
        _row("a device's count of these", scaled(found.sole_of_dim, found.dim)),
        _row("coordinates with more than one sum", found.split),
        RULE,
        _row("sent, of a device's d", found.sent),
        _row("exposed alone, of what it sends", found.alone_of_sent),
        _row("exposed alone, of its d", found.alone_of_dim),
        _row("exposed alone, as a count", scaled(found.alone_of_dim, found.dim)),
        _row("exposed alone at a coordinate, values", found.alone_at_coordinate),
        RULE,
        _row("anonymity set of a sent value, mean", found.mean_set),
        *(
            _row(f"sent values in a set of {_range(low, high)}", figure)
            for (low, high), figure in found.size_ranges.items()
        ),
        *_floor(found),
    ]
    return Table(
        _FIGURES,
        rows,
        notes=[
            "device: an honest survivor; contributor: one that sends the coordinate",
            "anonymity set of a sent value: the contributors whose sum the server learns instead",
            "exposed alone: sent in a set of 1; more than one sum: in more than one set",
            "formula: exact, - where no closed form is known; difference: simulation - formula",
        ],
    )


def render(found: Exposure) -> str:
    """Return an exposure as text: what it is of, and its table."""
    return f"{Facts(_header(found)).text()}\n\n{table(found).text()}"


def _header(found: Exposure) -> dict[str, str]:
    who = found.population
    header = {
        "protocol": found.protocol,
        "devices N": f"{who.devices}, of which {who.colluding} collude with the server",
        "dropouts": f"theta = {who.dropout:g}, {who.model}; "
        f"{who.mean_honest_survivors:.4g} honest survivors on average",
        "parameters d": str(found.dim),
    }
    if found.alpha is not None:
        header["alpha"] = f"{found.alpha:g}"
    if found.cohort is not None:
        header["cohort m"] = counted(found.cohort, "device")
    if found.masked:
        header["masks"] = _masks(found)
        if found.cohort is not None:
            header["masks"] += " of a cohort"
    header["simulation"] = (
        f"{counted(found.samples, 'coordinate')}, each of its own round; seed {found.seed}"
    )
    return header


def _masks(found: Exposure) -> str:
    """Return who has masks in common."""
    if not found.between_devices:
        return "of each device, or shares of its vector, of which the sum alone is told"
    if found.degree is None:
        return "between all pairs of devices"
    return f"between a device and {counted(found.degree, 'neighbour')}"


def _floor(found: Exposure) -> list[list[Any]]:
    if found.floor is None or found.below_floor is None:
        return []
    rows = [_row(f"sent values in a set below {found.floor}", found.below_floor)]
    for whose, bound in (
        ("a cohort has", found.cohort_below_floor),
        (f"any of {found.population.devices} cohorts has, at most,", found.round_below_floor),
    ):
        if bound is not None:
            name = f"{whose} fewer than {found.floor} contributors"
            rows.append(_row(name, Figure(bound, None, None)))
    return rows


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _row(name: str, figure: Figure) -> list[Any]:
    return [name, figure.formula, figure.simulation, figure.margin, figure.difference]
