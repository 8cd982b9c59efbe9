"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import click
from click.core import ParameterSource

Command = Callable[..., Any]


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator that adds the options in the order given."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class About(Protocol):
    """What a registry knows of a protocol or an algorithm without importing it."""

    @property
    def about(self) -> str: ...


def listing(**registries: Mapping[str, About]) -> Callable[[Command], Command]:
    """Put registries, one line an entry, in the place of their ``{name}`` in a command's help."""

    def decorate(command: Command) -> Command:
        for place, entries in registries.items():
            width = max(map(len, entries)) + 2
            lines = [f"{name:<{width}}{entry.about}" for name, entry in entries.items()]
            text = "\n      ".join(lines)
            command.__doc__ = (command.__doc__ or "").replace(f"{{{place}}}", text)
        return command

    return decorate


def _default_dropout(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Return the dropout rate; unless it was typed, 0 for a protocol that has no dropouts."""
    from hpcfl.algorithms.aggregation import find
    from hpcfl.errors import UsageError

    if context.get_parameter_source("dropout") is ParameterSource.COMMANDLINE:
        return value
    try:
        protocol = find(context.params.get("aggregate") or context.params.get("protocol", ""))
    except UsageError:
        return value  # An unknown protocol is refused when the run is prepared.
    return value if protocol.tolerates_dropouts else 0.0


output_option = click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Results file (.h5), or a folder for it.",
)

seed_options = _together(
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of everything random but keys.",
    ),
    click.option(
        "--insecure-seed",
        type=int,
        help="Seed of keys too, for tests: nothing is secret then.",
    ),
)

protocol_options = _together(
    click.option(
        "--alpha",
        type=float,
        default=0.1,
        show_default=True,
        help="Fraction of the coordinates that a device sends (sparse, cohort, rand-k, top-k).",
    ),
    click.option(
        "--dropout",
        type=float,
        default=0.3,
        callback=_default_dropout,
        help="Fraction of the devices that disappear in a round.  [default: 0.3; 0 for prf]",
    ),
    click.option(
        "--dropout-model",
        type=click.Choice(["exact", "bernoulli"]),
        default="exact",
        show_default=True,
        help="Exactly that fraction, rounded down, or each by chance.",
    ),
    click.option(
        "--scaling",
        type=click.Choice(["survivors", "paper"]),
        default="survivors",
        show_default=True,
        help="Divide a sum by the weight of the devices that are in it, or let devices scale by "
        "the planned rate beforehand, as SparseSecAgg's paper does.",
    ),
    click.option(
        "--dropout-phase",
        metavar="PHASE",
        help="Phase before which they disappear.  [default: their upload]",
    ),
    click.option(
        "--degree",
        type=int,
        metavar="K",
        help="Neighbours with whom a device shares keys and masks, even.  "
        "[default: all for secagg and sparse; chosen for secagg-graph and cohort]",
    ),
    click.option(
        "--gamma",
        type=float,
        default=0.1,
        show_default=True,
        help="Fraction of all devices that may collude with the server: what is promised is "
        "promised against them.",
    ),
    click.option(
        "--min-cohort",
        type=int,
        default=1,
        show_default=True,
        help="Honest survivors that every cohort is promised: devices refuse to unmask cohorts "
        "with fewer survivors than that and all that may collude.",
    ),
    click.option(
        "--security-bits",
        type=int,
        default=40,
        show_default=True,
        help="What is promised fails with probability 2 to the minus this.",
    ),
    click.option(
        "--correctness-bits",
        type=int,
        default=20,
        show_default=True,
        help="The same for a round that cannot end, as too many devices dropped out.",
    ),
    click.option(
        "--security",
        type=click.Choice(["passive", "active"]),
        default="passive",
        show_default=True,
        help="Against a curious server, or one that cheats too: signed keys, and devices agree on "
        "the survivors (secagg, sparse).",
    ),
    click.option(
        "--group",
        type=click.Choice(["fq", "ring32"]),
        default="fq",
        show_default=True,
        help="Integers modulo 2^32 - 5, or modulo 2^32.",
    ),
    click.option(
        "--sampler",
        type=click.Choice(["gaps", "dense"]),
        default="gaps",
        show_default=True,
        help="How pairs select coordinates (sparse).",
    ),
    click.option(
        "--locations",
        type=click.Choice(["auto", "bitmap", "gaps"]),
        default="auto",
        show_default=True,
        help="How locations are coded (sparse).",
    ),
    click.option(
        "--upload",
        type=click.Choice(["gather", "reduce"]),
        default="gather",
        show_default=True,
        help="Gather the vectors, or sum them within MPI_Reduce.",
    ),
    click.option(
        "--clip",
        type=float,
        default=1.0,
        show_default=True,
        help="Largest magnitude of a coordinate.",
    ),
    click.option(
        "--levels",
        type=int,
        help="Quantisation levels per unit.  [default: 2^20; the most with which no sum can wrap "
        "around, where an account pays for rounding]",
    ),
)

link_options = _together(
    click.option(
        "--uplink-mbps",
        type=float,
        default=100.0,
        show_default=True,
        help="Link model: a device's uplink in Mbit/s.",
    ),
    click.option(
        "--downlink-mbps",
        type=float,
        default=100.0,
        show_default=True,
        help="Link model: a device's downlink in Mbit/s.",
    ),
    click.option(
        "--latency-ms",
        type=float,
        default=0.0,
        show_default=True,
        help="Link model: latency in milliseconds.",
    ),
)
