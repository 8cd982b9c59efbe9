"""Options of `hpcfl predict`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import Section, option
from hpcfl.options.shared import DEVICES, DIM, LinkOptions, RoundOptions


@dataclass(frozen=True, kw_only=True)
class PredictOptions(RoundOptions, LinkOptions):
    """What `hpcfl predict` was asked for; see ``hpcfl predict --help``."""

    protocol: str = field(kw_only=False)
    devices: tuple[int, ...] = option(
        (100,), "Numbers N of devices.", **DEVICES, unit="devices", section=Section.SIZE
    )
    dim: tuple[int, ...] = option(
        (DEFAULT_DIM,), "Lengths d of the vectors.", **DIM, unit="coordinates", section=Section.SIZE
    )
    ranks: int = option(
        1,
        "Ranks of a run on this machine; 1: one process.",
        at_least=1,
        unit="ranks",
        section=Section.SIZE,
    )
    calibration: Path | None = option(
        None, "File of 'hpcfl calibrate'.", default_text="this host's", section=Section.ADVANCED
    )
