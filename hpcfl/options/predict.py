"""Options of `hpcfl predict`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcfl.options.bench import DEFAULT_DIM
from hpcfl.options.definition import Section, again, option
from hpcfl.options.shared import CommonOptions, LengthOptions, LinkOptions, RoundOptions


@dataclass(frozen=True, kw_only=True)
class PredictOptions(RoundOptions, LinkOptions):
    """What `hpcfl predict` was asked for; see ``hpcfl predict --help``."""

    protocol: str = field(kw_only=False)
    devices: tuple[int, ...] = again(
        CommonOptions,
        "devices",
        (100,),
        help="Numbers N of devices.",
    )
    dim: tuple[int, ...] = again(
        CommonOptions,
        "dim",
        (DEFAULT_DIM,),
        help="Lengths d of the vectors.",
    )
    model: str | None = again(LengthOptions, "model", None)
    ranks: int = again(
        CommonOptions,
        "ranks",
        1,
        help="Ranks of a run on this machine; 1: one process.",
        at_least=1,
    )
    calibration: Path | None = option(
        None, "File of 'hpcfl calibrate'.", default_text="this host's", section=Section.ADVANCED
    )
