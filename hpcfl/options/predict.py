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
        2,
        help="Ranks of the modelled cluster.",
        at_least=2,
        needs="network_gbps",
    )
    network_gbps: float | None = option(
        None,
        "Model the ranks on a cluster that is not here: cores like the calibrated ones, one for "
        "each rank, and a network with this bandwidth of each rank in either direction.",
        above=0,
        unit="Gbit/s",
        default_text="no cluster: one process on this machine",
        section=Section.ADVANCED,
    )
    network_us: float = option(
        2.0,
        "Latency of a message in the modelled cluster's network.",
        at_least=0,
        unit="us",
        section=Section.ADVANCED,
    )
    calibration: Path | None = option(
        None, "File of 'hpcfl calibrate'.", default_text="this host's", section=Section.ADVANCED
    )
