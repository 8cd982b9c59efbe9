"""Options that several commands share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, option

DEFAULT_LEVELS = 2**20
# Bits of the groups that vectors can be summed in.
WIDTHS = range(8, 33, 4)
# What the numbers of devices, coordinates and rounds have in common wherever they are options:
# positions and counts of elements are sent as 32-bit numbers, and so is the number of a round.
DEVICES: dict[str, Any] = {"at_least": 1, "at_most": 2**31 - 1}
DIM: dict[str, Any] = {"at_least": 1, "at_most": 2**32 - 1}
ROUNDS: dict[str, Any] = {"at_least": 1, "at_most": 2**31 - 1}
_MBPS: dict[str, Any] = {"at_least": 1e-9}


def group_of(family: str, bits: int | str) -> str:
    """Return the name of a family's group of so many bits: rings, or fields."""
    return "fq" if (family, str(bits)) == ("field", "32") else f"{family}{bits}"


_GROUPS = ["fq", *(group_of(family, bits) for family in ("ring", "field") for bits in WIDTHS)]
GROUP_NAMES = tuple(dict.fromkeys(_GROUPS))


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions(OptionGroup):
    """What all devices and the server of an aggregation protocol agree on."""

    heading = "Protocol"

    alpha: float = option(
        0.1,
        "Fraction of the coordinates that a device sends, where it does not send all.",
        above=0,
        at_most=1,
        marks=("label",),
    )
    dropout: float = option(
        0.3,
        "Fraction of the devices that drop out of a round; more than half must stay.",
        at_least=0,
        below=0.5,
        default_text="0.3; 0 for protocols without dropouts",
        marks=("label",),
    )
    dropout_model: str = option(
        "exact",
        "Drop out exactly that fraction, rounded down, or each device with that probability.",
        choices=("exact", "bernoulli"),
        marks=("label",),
    )
    scaling: str = option(
        "survivors",
        "Divide a sum by the weight of its devices, or let devices scale by the planned rate.",
        choices=("survivors", "paper"),
    )
    degree: int | None = option(
        None,
        "Neighbours with whom a device shares keys and masks; an even number.",
        at_least=2,
        default_text="all, or as many as the protocol chooses",
        marks=("label",),
    )
    gamma: float = option(
        0.1,
        "Fraction of all devices that may collude with the server: promises hold against them.",
        at_least=0,
        below=0.5,
        marks=("label",),
    )
    min_cohort: int = option(
        1,
        "Honest survivors promised in every cohort: devices do not unmask one with fewer.",
        at_least=1,
        marks=("label",),
    )
    security_bits: int = option(
        40,
        "A promise of secrecy fails with a probability of at most 2 to the power of minus this.",
        at_least=1,
        at_most=1000,
    )
    security: str = option(
        "passive",
        "Protect against a curious server, or also against one that cheats: keys are signed, and "
        "devices agree on the survivors.",
        choices=("passive", "active"),
        marks=("label",),
    )
    group: str = option(
        "fq",
        "Integers modulo 2^32 - 5, 2^B or, where vectors are coded, the largest prime of B bits.",
        choices=GROUP_NAMES,
        marks=("label",),
    )
    sampler: str = option(
        "gaps", "How pairs select coordinates (sparse).", choices=("gaps", "dense")
    )
    levels: int | None = option(
        None,
        "Quantisation levels per unit.",
        at_least=1,
        default_text="2^20, or as many as the bits have room for; where an account pays for "
        "rounding, the most with which no sum can wrap around",
        marks=("label",),
    )
    clip: float = option(1.0, "Largest magnitude of a coordinate.", above=0, marks=("label",))
    committee: int | None = option(
        None,
        "Devices in the committee of a round, of a protocol that has one (committee).",
        at_least=2,
        default_text="the fewest with which a device sends at most twice what it would if all "
        "were members",
        marks=("label", "recorded if given"),
    )
    helpers: int | None = option(
        None,
        "Helpers, each on a rank of its own, of a protocol that has some (assisted).",
        at_least=1,
        default_text="as many as the protocol has by itself",
        marks=("label", "recorded if given"),
    )
    threads: int = option(
        1,
        "Threads of a rank that mask and unmask, for protocols that mask whole vectors.",
        at_least=1,
        marks=("label", "recorded if given"),
    )
    rotate: bool = option(
        False,
        "Rotate vectors at random before they are clipped and rounded, so that less is lost.",
        marks=("label", "recorded if given"),
    )
    # A round fails, because too many devices dropped out, with a probability of at most 2 to the
    # power of minus this.
    correctness_bits: int = 20
    # Encoding of the positions of coordinates: the shorter one of bitmap and gaps, or one of them.
    locations: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.degree % 2:
            raise UsageError(f"--degree is {self.degree}; it must be an even number")


@dataclass(frozen=True, kw_only=True)
class RoundOptions(ProtocolOptions):
    """How the rounds of an aggregation protocol are played."""

    heading = "Rounds"

    bits: str | None = option(
        None,
        "Bits of a value that is sent: --group ringB, or fieldB where vectors are coded; auto: the "
        "fewest with which no sum can wrap around; with noise, the fewest with room for --levels.",
        choices=("auto", *map(str, WIDTHS)),
        default_text="as --group says",
        marks=("unrecorded",),
    )
    dropout_phase: str | None = option(
        None, "Phase before which devices drop out.", default_text="their upload"
    )
    upload: str = option(
        "gather",
        "Gather the vectors, or sum them on the way by MPI_Reduce.",
        choices=("gather", "reduce"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # That may be the default, to which --bits is the alternative.
        if self.group != "fq":
            check_group(self.group, self.bits)


def check_group(group: str | None, bits: object) -> None:
    """Refuse, by UsageError, to be given a group and the bits of another one."""
    if group is None or bits is None:
        return
    if group not in (group_of(family, str(bits)) for family in ("ring", "field")):
        raise UsageError(f"--group {group} and --bits {bits} are two groups: give one of them")


@dataclass(frozen=True, kw_only=True)
class LinkOptions(OptionGroup):
    """The link between a device and the server, of the modelled seconds."""

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
class SeedOptions(OptionGroup):
    """Where random numbers come from that need not be secret."""

    heading = "Randomness"

    seed: int = option(
        0,
        "Seed of everything random except keys.",
        at_least=0,
        at_most=2**64 - 1,
        marks=("label", "repeat"),
    )


def check_length(given: Mapping[str, Any]) -> None:
    """Refuse, by UsageError, to be given the vectors' length by two options."""
    for name in ("dim", "updates"):
        if given.get("model") is not None and given.get(name) is not None:
            raise UsageError(
                f"--model and --{name} both say how long the vectors are: give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class RunOptions(RoundOptions, LinkOptions, SeedOptions):
    """What `hpcfl bench` and `hpcfl train` have in common."""

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
        "Continue the results file of a run that was interrupted, with the options of that "
        "run: no others need be given.",
        marks=("launch", "unrecorded"),
    )
    insecure_seed: int | None = option(
        None, "Seed of the keys too, for tests: nothing is secret then.", marks=("repeat if given",)
    )
