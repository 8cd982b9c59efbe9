"""Options that several commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option
from hpcfl.options.protocols import ProtocolOptions
from hpcfl.values import dataclass

# Ranges of the numbers of devices, coordinates and rounds in all commands. Messages hold positions,
# counts of elements and round numbers in 32 bits.
DEVICES: dict[str, Any] = {"at_least": 1, "at_most": 2**31 - 1}
DIM: dict[str, Any] = {"at_least": 1, "at_most": 2**32 - 1}
ROUNDS: dict[str, Any] = {"at_least": 1, "at_most": 2**31 - 1}
_MBPS: dict[str, Any] = {"at_least": 1e-9}


@dataclass(frozen=True, kw_only=True)
class LinkOptions(OptionGroup):
    """Options of the links for which seconds are modelled."""

    heading = "Modelled links"

    uplink_mbps: float = option(
        100.0, "Modelled uplink of a device.", **_MBPS, marks=("resumable",)
    )
    downlink_mbps: float = option(
        100.0, "Modelled downlink of a device.", **_MBPS, marks=("resumable",)
    )
    helper_mbps: float = option(
        1000.0,
        "Modelled link of a helper, in either direction.",
        **_MBPS,
        marks=("resumable", "recorded if given"),
    )
    latency_ms: float = option(0.0, "Modelled latency of a link.", at_least=0, marks=("resumable",))


@dataclass(frozen=True, kw_only=True)
class PopulationOptions(OptionGroup):
    """Options of devices that are not alike, and of a server that does not wait for all."""

    heading = "Modelled devices"

    population: str | None = option(
        None,
        "Links and processors of the devices: uniform, mobile, iot, silo, or a table (.csv, .h5); "
        "see hpcfl data population. Devices then drop out because they are late, not by chance: "
        "--dropout is the fraction that protocols plan for.",
        marks=("label", "resumable", "recorded if given"),
    )
    quorum: float = option(
        1.0,
        "Fraction of the devices whose answers the server waits for in every exchange.",
        above=0.5,
        at_most=1,
        marks=("label", "recorded if given"),
    )
    deadline: float | None = option(
        None,
        "Modelled seconds for which the server waits in every exchange.",
        above=0,
        marks=("label", "recorded if given"),
    )


@dataclass(frozen=True, kw_only=True)
class SeedOptions(OptionGroup):
    """Options of random numbers that need not be secret."""

    heading = "Randomness"

    seed: int = option(
        0,
        "Seed of everything random except keys.",
        at_least=0,
        at_most=2**64 - 1,
        marks=("label", "repeat"),
    )


def check_length(given: Mapping[str, Any]) -> None:
    """Raise UsageError if two options set the length of the vectors."""
    for name in ("dim", "updates"):
        if given.get("model") is not None and given.get(name) is not None:
            raise UsageError(
                f"--model and --{name} both say how long the vectors are: give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class RunOptions(ProtocolOptions, LinkOptions, PopulationOptions, SeedOptions):
    """Options that `hpcfl bench` and `hpcfl train` have in common."""

    heading = "Results file"

    output: Path = option(
        Path("results"),
        "Results file (.h5), or a folder for it.",
        marks=("output", "launch", "repeat", "unrecorded"),
    )
    note: str | None = option(
        None,
        "A note that the results file keeps, such as what is special about this run.",
        marks=("resumable", "repeat", "recorded if given"),
    )
    resume: Path | None = option(
        None,
        "Continue an interrupted run in its results file, which holds all options of the run.",
        marks=("launch", "unrecorded"),
    )
    insecure_seed: int | None = option(
        None, "Seed of the keys too, for tests: nothing is secret then.", marks=("repeat if given",)
    )
