"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import UsageError
from hpcfl.options.definition import OptionGroup, Section, again, option
from hpcfl.system import outputs

DEFAULT_LEVELS = 2**20
# Ranges of the numbers of devices and coordinates: positions and counts of elements are sent as
# 32-bit numbers.
DEVICES = {"at_least": 1, "at_most": 2**31 - 1}
DIM = {"at_least": 1, "at_most": 2**32 - 1}
# Messages carry the number of their round in 32 bits.
ROUNDS = {"at_least": 1, "at_most": 2**31 - 1}
# Bits of the groups that vectors can be summed in.
WIDTHS = range(8, 33, 4)


def group_of(family: str, bits: int | str) -> str:
    """Return the name of a family's group of so many bits: rings, or fields."""
    return "fq" if (family, str(bits)) == ("field", "32") else f"{family}{bits}"


GROUP_NAMES = tuple(
    dict.fromkeys(
        ("fq", *(group_of(family, bits) for family in ("ring", "field") for bits in WIDTHS))
    )
)


@dataclass(frozen=True, kw_only=True)
class CommonOptions(OptionGroup):
    """What several commands take over by `again`, with defaults and sentences of their own."""

    devices: int | None = option(
        None, "Number of devices.", **DEVICES, unit="devices", section=Section.SIZE
    )
    dim: int | None = option(
        None, "Length of the vectors.", **DIM, unit="coordinates", section=Section.SIZE
    )
    rounds: int | None = option(
        None, "Number of rounds.", **ROUNDS, unit="rounds", section=Section.SIZE
    )
    max_rounds: int | None = option(
        None, "Largest number of rounds.", **ROUNDS, unit="rounds", section=Section.SIZE
    )
    max_seconds: float | None = option(
        None, "Stop after so many seconds.", unit="seconds", section=Section.SIZE
    )
    ranks: int | None = option(None, "MPI ranks.", at_least=1, unit="ranks", section=Section.SIZE)
    aggregate: str | None = option(
        None,
        "Protocol that sums.",
        recorded="no",
        unit="protocol",
        section=Section.WHAT,
    )
    model: str | None = option(None, "A model.", unit="name", section=Section.WHAT)
    samples: int | None = option(
        None, "Samples of a device.", at_least=1, unit="samples", section=Section.SIZE
    )
    resume: Path | None = option(None, "Continue a run.", section=Section.OUTPUT)
    plot: Path | None = option(
        None, "Also draw a figure.", writes=outputs.FIGURE, section=Section.OUTPUT
    )
    size: str = option(
        "page",
        "Width of the figure: column (3.33 inches) or page (7 inches), with the height that it "
        "needs; or width x height in inches, such as 6x4.",
        unit="SIZE",
        section=Section.OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions(OptionGroup):
    """What all devices and the server of an aggregation protocol agree on."""

    alpha: float = option(
        0.1,
        "Fraction of the coordinates that a device sends, where it does not send all.",
        above=0,
        at_most=1,
        label=True,
        unit="fraction",
        section=Section.WHAT,
    )
    dropout: float = option(
        0.3,
        "Fraction of the devices that drop out of a round.",
        at_least=0,
        below=0.5,
        why="as more than half of the devices must stay to unmask the sum",
        default_text="0.3; 0 for protocols without dropouts",
        label=True,
        unit="fraction",
        section=Section.SIZE,
    )
    dropout_model: str = option(
        "exact",
        "Drop out exactly that fraction, rounded down, or each device with that probability.",
        choices=("exact", "bernoulli"),
        label=True,
        section=Section.SIZE,
    )
    scaling: str = option(
        "survivors",
        "Divide a sum by the weight of the devices in it, or let devices scale by the planned "
        "rate beforehand, as in SparseSecAgg's paper.",
        choices=("survivors", "paper"),
        section=Section.ADVANCED,
    )
    degree: int | None = option(
        None,
        "Neighbours with whom a device shares keys and masks; an even number.",
        at_least=2,
        default_text="all, or as many as the protocol chooses",
        label=True,
        unit="neighbours",
        section=Section.SIZE,
    )
    locations: str = option(
        "auto",
        "Encoding of the positions of coordinates (sparse).",
        choices=("auto", "bitmap", "gaps"),
        label=True,
        section=Section.ADVANCED,
    )
    gamma: float = option(
        0.1,
        "Fraction of all devices that may collude with the server: promises hold against them.",
        at_least=0,
        below=0.5,
        why="as a threshold of more than half protects against no more colluding devices",
        label=True,
        unit="fraction",
        section=Section.PRIVACY,
    )
    min_cohort: int = option(
        1,
        "Honest survivors promised in every cohort: devices refuse to unmask a cohort with fewer "
        "survivors than that and all that may collude.",
        at_least=1,
        label=True,
        unit="survivors",
        section=Section.PRIVACY,
    )
    security_bits: int = option(
        40,
        "A promise of secrecy fails with a probability of at most 2 to the power of minus this.",
        at_least=1,
        at_most=1000,
        unit="bits",
        section=Section.PRIVACY,
    )
    correctness_bits: int = option(
        20,
        "A round fails, because too many devices dropped out, with a probability of at most 2 to "
        "the power of minus this.",
        at_least=1,
        at_most=1000,
        unit="bits",
        section=Section.PRIVACY,
    )
    security: str = option(
        "passive",
        "Protect against a curious server, or also against one that cheats, where the protocol has "
        "such a variant: keys are signed, and devices agree on the survivors.",
        choices=("passive", "active"),
        label=True,
        section=Section.PRIVACY,
    )
    group: str = option(
        "fq",
        "Integers modulo 2^32 - 5, modulo 2^B or, where vectors are coded, modulo the largest "
        "prime of B bits; packed in B bits each.",
        choices=GROUP_NAMES,
        label=True,
        section=Section.WHAT,
    )
    model_update: str = option(
        "whole",
        "Send devices the whole model, or only the coordinates that have changed since they last "
        "got it (common).",
        choices=("whole", "changed"),
        recorded="if given",
        label=True,
        section=Section.WHAT,
    )
    sampler: str = option(
        "gaps",
        "How pairs select coordinates (sparse).",
        choices=("gaps", "dense"),
        section=Section.ADVANCED,
    )
    levels: int | None = option(
        None,
        "Quantisation levels per unit.",
        at_least=1,
        default_text="2^20, or as many as the bits have room for; where an account pays for "
        "rounding, the most with which no sum can wrap around",
        label=True,
        unit="levels",
        section=Section.WHAT,
    )
    clip: float = option(
        1.0,
        "Largest magnitude of a coordinate.",
        above=0,
        label=True,
        unit="magnitude",
        section=Section.WHAT,
    )
    shared: bool = option(
        False,
        "Devices send the same fraction alpha of the coordinates in a round, others in the next "
        "(assisted; secagg with it is common).",
        recorded="if given",
        label=True,
        section=Section.WHAT,
    )
    committee: int | None = option(
        None,
        "Devices in the committee of a round, of a protocol that has one (committee).",
        at_least=2,
        default_text="the fewest with which a device sends at most twice what it would if all "
        "were members",
        recorded="if given",
        label=True,
        unit="devices",
        section=Section.SIZE,
    )
    helpers: int | None = option(
        None,
        "Helpers, each on a rank of its own, of a protocol that has some (assisted).",
        at_least=1,
        default_text="as many as the protocol has by itself",
        recorded="if given",
        label=True,
        unit="helpers",
        section=Section.SIZE,
    )
    helper_dropout: int = option(
        0,
        "Number of helpers, other ones in every round, that drop out before devices upload; rounds "
        "do without so many (assisted).",
        at_least=0,
        recorded="if given",
        label=True,
        unit="helpers",
        section=Section.SIZE,
    )
    threads: int = option(
        1,
        "Threads of a rank that mask and unmask, for protocols that mask whole vectors.",
        at_least=1,
        recorded="if given",
        label=True,
        unit="threads",
        section=Section.ADVANCED,
    )
    rotate: bool = option(
        False,
        "Rotate vectors at random before they are clipped and rounded, so that few levels, or a "
        "small clip, lose less.",
        recorded="if given",
        label=True,
        section=Section.WHAT,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.degree % 2:
            raise UsageError(f"--degree is {self.degree}; it must be an even number")


@dataclass(frozen=True, kw_only=True)
class RoundOptions(ProtocolOptions):
    """How the rounds of an aggregation protocol are played."""

    bits: str | None = option(
        None,
        "Bits of a value that is sent: --group ringB, or fieldB where vectors are coded; auto: the "
        "fewest with which no sum can wrap around; with noise, the fewest with room for --levels.",
        choices=("auto", *map(str, WIDTHS)),
        default_text="as --group says",
        recorded="no",
        section=Section.WHAT,
    )
    dropout_phase: str | None = option(
        None,
        "Phase before which devices drop out.",
        default_text="their upload",
        unit="phase",
        section=Section.SIZE,
    )
    upload: str = option(
        "gather",
        "Gather the vectors, or sum them on the way by MPI_Reduce.",
        choices=("gather", "reduce"),
        section=Section.ADVANCED,
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

    uplink_mbps: float = option(
        100.0,
        "Modelled uplink of a device.",
        unit="Mbit/s",
        at_least=1e-9,
        resumable=True,
        section=Section.LINKS,
    )
    downlink_mbps: float = option(
        100.0,
        "Modelled downlink of a device.",
        unit="Mbit/s",
        at_least=1e-9,
        resumable=True,
        section=Section.LINKS,
    )
    helper_mbps: float = option(
        1000.0,
        "Modelled link of a helper, in either direction.",
        unit="Mbit/s",
        at_least=1e-9,
        resumable=True,
        recorded="if given",
        section=Section.LINKS,
    )
    latency_ms: float = option(
        0.0,
        "Modelled latency of a link.",
        unit="ms",
        at_least=0,
        resumable=True,
        section=Section.LINKS,
    )


@dataclass(frozen=True, kw_only=True)
class SeedOptions(OptionGroup):
    """Where random numbers come from that need not be secret."""

    seed: int = option(
        0,
        "Seed of everything random except keys.",
        at_least=0,
        at_most=2**64 - 1,
        repeats="yes",
        label=True,
        unit="seed",
        section=Section.ADVANCED,
    )


@dataclass(frozen=True, kw_only=True)
class LengthOptions(OptionGroup):
    """A model that says how long vectors are, in place of a number."""

    model: str | None = again(
        CommonOptions,
        "model",
        None,
        help="Let d be the number of parameters of a model of hpcfl train, such as 2nn or "
        "softmax@digits, or of what MODULE:FUNCTION returns (a torch module, arrays, or d), in "
        "place of --dim.",
        recorded="if given",
    )


def check_length(given: Mapping[str, Any]) -> None:
    """Refuse, by UsageError, to be given the vectors' length by two options."""
    if given.get("model") is not None:
        for name in ("dim", "updates"):
            if given.get(name) is not None:
                raise UsageError(
                    f"--model and --{name} both say how long the vectors are: give one of them"
                )


@dataclass(frozen=True, kw_only=True)
class RunOptions(RoundOptions, LinkOptions, SeedOptions):
    """What `hpcfl bench` and `hpcfl train` have in common."""

    output: Path = option(
        Path("results"),
        "Results file (.h5), or a folder for it.",
        recorded="no",
        sweepable=False,
        of_launch=True,
        repeats="yes",
        writes=outputs.RESULTS,
        section=Section.OUTPUT,
    )
    note: str | None = option(
        None,
        "A note that the results file keeps, such as what is special about this run.",
        recorded="if given",
        resumable=True,
        repeats="yes",
        section=Section.OUTPUT,
    )
    insecure_seed: int | None = option(
        None,
        "Seed of the keys too, for tests: nothing is secret then.",
        repeats="if given",
        unit="seed",
        section=Section.ADVANCED,
    )
