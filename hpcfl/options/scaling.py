"""Options of tables and figures of scaling, and of the cluster that they are continued to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcfl.options.definition import OptionGroup, Section, again, option
from hpcfl.options.predict import PredictOptions

# What there can be more and more of, and what one of it is called.
SCALES = {
    "ranks": "ranks that hold devices",
    "nodes": "nodes",
    "server-ranks": "ranks of the server",
    "threads": "threads of a rank",
}


@dataclass(frozen=True, kw_only=True)
class ContinuationOptions(OptionGroup):
    """How far a table or figure of scaling goes on beyond what was measured, as modelled."""

    continue_to: tuple[int, ...] = option(
        (),
        "Go on to so many ranks that hold devices, or nodes, which nobody here has: modelled as "
        "'hpcfl predict --network-gbps' does, and marked as modelled.",
        at_least=1,
        at_most=10**6,
        unit="number",
        section=Section.WHAT,
    )
    network_gbps: float = again(
        PredictOptions,
        "network_gbps",
        100.0,
        help="Bandwidth of the modelled cluster's network, of each rank in either direction.",
    )
    network_us: float = again(PredictOptions, "network_us", 2.0)
    calibration: Path | None = again(PredictOptions, "calibration", None)
