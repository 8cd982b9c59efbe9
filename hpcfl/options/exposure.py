"""Options of `hpcfl privacy exposure`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from hpcfl.errors import UsageError
from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import OptionGroup, Section, again, option
from hpcfl.options.shared import CommonOptions, LengthOptions, ProtocolOptions, SeedOptions

# The papers' fraction of colluding devices.
COLLUDING = Fraction(1, 3)


@dataclass(frozen=True, kw_only=True)
class ExposureOptions(OptionGroup):
    """What is asked of a round's exposure; see ``hpcfl privacy exposure --help``."""

    protocol: str = field(kw_only=False)
    devices: int = again(
        CommonOptions,
        "devices",
        100,
        help="Number N of devices.",
    )
    alpha: float = again(ProtocolOptions, "alpha", 0.1)
    dropout: float = again(
        ProtocolOptions,
        "dropout",
        0.3,
        help="Fraction theta of the devices that drop out after key sharing, before their upload.",
    )
    dropout_model: str = again(
        ProtocolOptions,
        "dropout_model",
        "exact",
        help="How devices drop out: exactly that fraction, rounded down; each independently; or "
        "exactly that fraction, all of them honest (targeted).",
        choices=("exact", "bernoulli", "targeted"),
    )
    gamma: Fraction | None = again(
        ProtocolOptions,
        "gamma",
        None,
        help="Fraction of the devices that collude with the server, rounded down.",
        at_least=0,
        at_most=1,
        default_text="1/3",
        below=None,
    )
    colluding: int | None = option(
        None,
        "Number of devices that collude, instead of --gamma.",
        at_least=0,
        unit="devices",
        section=Section.PRIVACY,
    )
    degree: int | None = again(
        ProtocolOptions,
        "degree",
        None,
        help="Neighbours of a device in the masking graph.",
        default_text="all; required by secagg-graph",
    )
    dim: int = again(
        CommonOptions,
        "dim",
        DEFAULT_DIM,
        help="Number d of coordinates; only counts depend on it.",
    )
    model: str | None = again(LengthOptions, "model", None)
    floor: int | None = option(
        None,
        "Report anonymity sets with fewer members than this.",
        at_least=1,
        unit="members",
        section=Section.OUTPUT,
    )
    simulated: int | None = option(
        None,
        "Coordinates to simulate.",
        at_least=1,
        default_text="100000, fewer with over 200 devices",
        unit="coordinates",
        section=Section.ADVANCED,
    )
    seed: int = again(SeedOptions, "seed", 0, help="Seed of the simulation.")
    plot: Path | None = again(
        CommonOptions,
        "plot",
        None,
        help="Also draw contributors and exposure over alpha, for several dropout rates: .png, "
        ".svg or .pdf; for protocols that do not send all coordinates.",
    )
    size: str = again(CommonOptions, "size", "page")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is not None and self.colluding is not None:
            raise UsageError("--gamma and --colluding say the same in two ways: give one of them")

    @property
    def colluders(self) -> int:
        """Number of devices that collude with the server."""
        if self.colluding is not None:
            return self.colluding
        return math.floor((COLLUDING if self.gamma is None else self.gamma) * self.devices)
